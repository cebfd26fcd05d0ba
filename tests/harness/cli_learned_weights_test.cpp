// Weights that lie here, as a user meets them: what `inspect` says of them, and what a run does with those of another
// model, width, tying or input.

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "harness/files.h"
#include "tests/support/cli_fixture.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

class CliLearned : public Cli {
 protected:
  static std::string learned(const std::string& name) {
    return ref::source_path("experiments/models/reference/learned/" + name + ".safetensors");
  }
  std::string spec_of(const std::string& model, const std::string& policy) const {
    write_atomically(folder_ / "learned.yaml", fmt::format("model: {}\ndata: [{{task: reason, tokens: 64}}]\n"
                                                           "policies: [{{{}}}]\naxes: {{budget: 48, interval: 16}}\n"
                                                           "metrics: [loss]\nsamples: 1\n",
                                                           model, policy));
    return path("learned.yaml");
  }
  void expect_kept_out(const std::string& model, const std::string& policy, const std::string& reason) const {
    SCOPED_TRACE(policy);
    expect_refused(fmt::format("run {} --out {}", spec_of(model, policy), path("out")), reason);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  }
};

TEST_F(CliLearned, InspectSaysOfWhichModelAndHow) {
  const Output output = run("inspect " + learned("foresight-kv"));
  EXPECT_EQ(output.code, 0);
  for (const char* line : {"learner = foresight-kv\n", "model = reference\n", "setting.features = paper\n",
                           "setting.hidden = 16\n", "setting.inputs = attention+kv\n"}) {
    EXPECT_NE(output.text.find(line), std::string::npos) << line << output.text;
  }
  EXPECT_NE(output.text.find("[8, 4, 140, 16]\n"), std::string::npos) << output.text;
}

TEST_F(CliLearned, ThoseOfAnotherModelAreRefused) {
  const std::string shape = " is for 8 layers of 4 KV heads, expected 3 of 2; ";
  expect_kept_out(model(), "policy: foresight-kv, weights: " + learned("foresight-kv"), shape);
  expect_kept_out(model(), "policy: retention, weights: " + learned("retention"), shape);
  for (const char* admission : {"wg-kv", "duo"}) {
    expect_kept_out(
        model(), fmt::format("policy: full, admission: {{{}: {{weights: {}}}}}", admission, learned(admission)), shape);
  }
}

TEST_F(CliLearned, ThoseOfAnotherWidthTyingOrInputAreRefused) {
  const std::vector<std::pair<const char*, const char*>> others = {
      {"policy: retention, hidden: 32", "was learned with hidden: 64, expected 32"},
      {"policy: retention, tying: none", "was learned with tying: layer, expected none"},
      {"policy: full, admission: {wg-kv: {expand: 4}}", "was learned with expand: 1.5, expected 4"},
      {"policy: foresight-kv, features: code", "was learned with features: paper, expected code"},
      {"policy: foresight-kv, inputs: attention", "was learned with inputs: attention+kv, expected attention"},
      {"policy: foresight-kv, hidden: 64", "was learned with hidden: 16, expected 64"}};
  for (const auto& [policy, reason] : others) expect_kept_out(reference(), policy, reason);
}

}  // namespace
}  // namespace kv
