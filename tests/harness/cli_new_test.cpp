#include <fmt/format.h>

#include "harness/protocols/protocol.h"
#include "harness/rows_file.h"
#include "harness/spec/axis_owners.h"
#include "harness/spec/component_reader.h"
#include "harness/spec/data_reader.h"
#include "harness/spec/report_plan.h"
#include "harness/spec/spec_reader.h"
#include "sim/learned/learner.h"
#include "sim/policy/policy.h"
#include "tests/support/cli_fixture.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// Those of the binary: the tests register one of their own.
std::vector<const Protocol*> protocols_of_the_binary() {
  std::vector<const Protocol*> all = protocols();
  std::erase_if(all, [](const Protocol* protocol) { return protocol->name == "tally" || protocol->name == "throng"; });
  return all;
}

TEST_F(Cli, EveryTemplateIsValidAsItIs) {
  for (const Protocol* protocol : protocols_of_the_binary()) {
    const std::string file = path(protocol->name.c_str()) + ".yaml";
    const Output output = run(fmt::format("new {} --protocol {}", file, protocol->name));
    ASSERT_EQ(output.code, 0) << output.text;
    EXPECT_NE(output.text.find(fmt::format("next: kvlab {} {}\n", protocol->verb, file)), std::string::npos)
        << output.text;
    EXPECT_EQ(run("validate " + file).code, 0);
    const std::string text = read_file(file);
    for (const DeclaredParam& key : spec_keys()) {
      EXPECT_TRUE(text.find("\n" + key.key + ":") != text.npos || text.find("\n# " + key.key + ": ") != text.npos)
          << protocol->name << ": " << key.key;
    }
  }
}

// What is learned for a try is no reason to lose what the model came with.
TEST_F(Cli, ATrainingsTemplateLearnsWeightsOfItsOwn) {
  ASSERT_EQ(run("new " + path("t.yaml") + " --protocol train").code, 0);
  const auto weights = [](const std::vector<GivenParam>& options) {
    return make_policy("foresight-kv", options).scorer->learner()->file_name();
  };
  const Component policy = load_spec(path("t.yaml")).policies.front();
  ASSERT_EQ(policy.name, "foresight-kv");
  EXPECT_NE(weights(policy.options), weights({}));
}

TEST_F(Cli, ATemplateRuns) {
  ASSERT_EQ(run("new " + path("t.yaml") + " --policies full,h2o").code, 0);
  const Output output =
      run(fmt::format("run {} --no-draw --out {} --set samples=1 --set 'data=[{{task: reason, tokens: 96}}]' --set "
                      "axes.budget=48 --set "
                      "axes.interval=16",
                      path("t.yaml"), path("out")));
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("2 cases (0 from an earlier start), 0 skipped, 0 failed"), std::string::npos)
      << output.text;
}

TEST_F(Cli, ATemplateReplacesNothingAndNamesAMisspeltPolicy) {
  expect_refused("new " + path("tiny.yaml"), "tiny.yaml: is there already, expected a new name");
  EXPECT_EQ(read_file(spec_file()), yaml());
  expect_refused("new " + path("t.yaml") + " --policies full,snapvk",
                 "--policies: unknown policy 'snapvk', did you mean 'snapkv'?");
  expect_refused("new " + path("t.yaml") + " --protocol answer --policies snapkv",
                 "protocol answer needs the policy full among others");
  expect_refused("new " + path("t.yaml") + " --model owner/none", "get it with: hf download owner/none");
  EXPECT_FALSE(fs::exists(folder_ / "t.yaml"));
}

TEST_F(Cli, DescribePrintsEveryKeyFromTheCode) {
  const auto expect_keys = [](const std::string& topic, const std::vector<DeclaredParam>& keys) {
    const Output output = run("describe " + topic);
    EXPECT_EQ(output.code, 0) << output.text;
    EXPECT_FALSE(keys.empty()) << topic;
    for (const DeclaredParam& key : keys) {
      EXPECT_NE(output.text.find("\n  " + key.key + " "), std::string::npos) << topic << ": " << key.key;
      EXPECT_NE(output.text.find(key.help), std::string::npos) << topic << ": " << key.key;
    }
  };
  expect_keys("spec", spec_keys());
  expect_keys("spec", component_keys("policy")[0].keys);
  expect_keys("data", data_keys()[0].keys);
  for (const KeySection& section : table_keys()) expect_keys("tables", section.keys);
  for (const KeySection& section : plot_keys()) expect_keys("plots", section.keys);
  expect_keys("axes", shared_axes());
  const std::string text = run("describe protocols").text, axes = run("describe axes").text;
  for (const Protocol* protocol : protocols_of_the_binary()) {
    EXPECT_NE(text.find(fmt::format("protocol {}: {}\n", protocol->name, protocol->summary)), std::string::npos);
    EXPECT_NE(run("describe " + protocol->name).text.find(protocol->summary), std::string::npos);
    for (const ProtocolAxis& axis : protocol->axes) {
      EXPECT_NE(text.find(axis.help), std::string::npos) << axis.name;
      EXPECT_NE(axes.find(axis.help), std::string::npos) << axis.name;
    }
  }
}

TEST_F(Cli, DescribeHintsAcrossAllKinds) {
  for (const auto& [word, meant] :
       {std::pair("polts", "plots"), std::pair("anwser", "answer"), std::pair("unifrom", "uniform"),
        std::pair("reacll", "recall"), std::pair("resaon", "reason"), std::pair("qucikstart", "quickstart")}) {
    expect_refused(std::string("describe ") + word, fmt::format("did you mean '{}'?", meant));
  }
}

TEST_F(Cli, AModelOfTheHuggingFaceCacheRunsByItsName) {
  const fs::path repository = folder_ / "hub/models--owner--tiny";
  fs::create_directories(repository / "snapshots");
  fs::create_directories(repository / "refs");
  fs::copy(model(), repository / "snapshots/abc");
  write_atomically(repository / "refs/main", "abc");
  const std::string cache = "export HF_HUB_CACHE=" + path("hub") + ";";
  const std::string tiny = fmt::format("{} --quiet --set model=owner/tiny --out {}", path("tiny.yaml"), path("out"));
  const Output output = run("run " + tiny, cache.c_str());
  ASSERT_EQ(output.code, 0) << output.text;
  for (const Row& row : read_rows(folder_ / "out/rows.csv").rows) EXPECT_EQ(row.model, "tiny");
  EXPECT_EQ(
      run(fmt::format("score --model owner/tiny --ids {} --out {}", path("ids.safetensors"), path("s")), cache.c_str())
          .code,
      0);
  const Output absent =
      run("validate " + path("tiny.yaml") + " --set model=owner/tiny", "export HF_HUB_CACHE=/nonexistent;");
  EXPECT_EQ(absent.code, 2);
  EXPECT_EQ(
      absent.text,
      "kvlab: --set model=owner/tiny: model 'owner/tiny': no such folder, and /nonexistent/models--owner--tiny has "
      "no snapshot in refs/main; get it with: hf download owner/tiny\n");
}

}  // namespace
}  // namespace kv
