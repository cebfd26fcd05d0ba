// The experiments that ship, as a user of a fresh clone validates them.

#include <regex>
#include <string>

#include "tests/support/cli_fixture.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

using CliOfShippedSlow = Cli;

// Whether a spec names one whose training makes the weights that a refusal misses.
bool says_which_spec_trains(const std::string& spec, const std::string& refusal) {
  std::smatch missing;
  if (!std::regex_search(refusal, missing, std::regex("learned/([^/]*)\\.safetensors"))) return false;
  const std::regex named("experiments/([a-z0-9-]+)\\.yaml"), made("weights: ([a-z0-9-]+)");
  for (std::sregex_iterator at(spec.begin(), spec.end(), named), end; at != end; ++at) {
    const fs::path training = ref::source_path("experiments/" + (*at)[1].str() + ".yaml");
    const std::string text = fs::exists(training) ? read_file(training) : std::string();
    std::smatch weights;
    if (text.find("\nlearn:") == std::string::npos || !std::regex_search(text, weights, made)) continue;
    if (missing[1].str().starts_with(weights[1].str())) return true;
  }
  return false;
}

TEST_F(CliOfShippedSlow, ExperimentsAreValid) {
  // Models are looked for where the tool is called, too: in the clone, wherever the tests are.
  const std::string in_clone = "cd '" + ref::source_path("") + "';";
  for (const auto& entry : fs::directory_iterator(ref::source_path("experiments"))) {
    if (entry.path().extension() != ".yaml") continue;
    std::string words = "validate " + entry.path().string();
    const std::string text = read_file(entry.path());
    const std::string downloaded = "experiments/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (text.find("\nmodel: " + downloaded) != std::string::npos && !fs::exists(ref::source_path(downloaded))) {
      expect_refused(words, "no such file; get it with: ./dev model smollm2-135m", in_clone.c_str());
      words += " --set model=experiments/models/reference";
    }
    Output output = run(words, in_clone.c_str());
    // Prose of trainings is everybody's own.
    if (output.text.find("'experiments/corpus': no such file or folder") != std::string::npos) {
      EXPECT_EQ(output.code, 2);
      EXPECT_FALSE(fs::exists(ref::source_path("experiments/corpus")));
      words += " --set texts=experiments/data";
      output = run(words, in_clone.c_str());
    }
    // Weights of an ablation are made anew by their spec, and kept by nobody.
    if (output.text.find("there are no learned weights") != std::string::npos) {
      EXPECT_TRUE(says_which_spec_trains(text, output.text)) << entry.path() << "\n" << output.text;
      EXPECT_EQ(output.code, 2);
      continue;
    }
    // The traces that the absent model wrote are no other's, nor are its profiles.
    const bool is_of_absent = words.find("--set") != std::string::npos &&
                              (output.text.find("there are no traces yet") != std::string::npos ||
                               output.text.find("models/smollm2-135m/profiles/") != std::string::npos);
    EXPECT_EQ(output.code, is_of_absent ? 2 : 0) << output.text;
  }
}

}  // namespace
}  // namespace kv
