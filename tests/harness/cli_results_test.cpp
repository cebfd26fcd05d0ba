// kvlab run --stale, kvlab validate --stale and verdicts, as a user meets them.
#include <nlohmann/json.hpp>

#include "tests/support/cli_fixture.h"

namespace kv {
namespace {

class CliStale : public Cli {
 protected:
  // In the folder whose `results` they are.
  Output run_here(const std::string& arguments) const {
    return run(arguments, fmt::format("cd '{}';", folder_.string()).c_str());
  }
  bool made(const char* name) const { return std::filesystem::exists(folder_ / "results" / name / "rows.csv"); }
};

TEST_F(CliStale, RunsWhatIsMissingThenNothingThenWhatChanged) {
  const Output first = run_here("run tiny.yaml --stale --quiet");
  EXPECT_EQ(first.code, 0) << first.text;
  EXPECT_NE(first.text.find("tiny: stale: there is no result yet"), std::string::npos) << first.text;
  EXPECT_NE(first.text.find("0 fresh, 1 made again, 0 drawn again, 0 left out of date"), std::string::npos)
      << first.text;
  ASSERT_TRUE(made("tiny"));
  const Output second = run_here("run tiny.yaml --stale");
  EXPECT_EQ(second.text, "tiny: fresh\n1 fresh, 0 made again, 0 drawn again, 0 left out of date\n");
  write_atomically(spec_file(), test::replaced(yaml(), "seed: 5", "seed: 6"));
  const Output said = run_here("validate tiny.yaml --stale");
  EXPECT_EQ(said.text,
            "tiny: stale: the spec differs: seed\n0 fresh, 1 to be made again, 0 drawn again, 0 left out of date\n");
  const Output third = run_here("run tiny.yaml --stale --quiet");
  EXPECT_EQ(third.code, 0) << third.text;
  EXPECT_NE(run_here("run tiny.yaml --stale").text.find("tiny: fresh\n"), std::string::npos);
}

// A run by itself leaves the index as it is: that reads the rows of all results.
TEST_F(CliStale, TheIndexIsWrittenAgainAtTheEnd) {
  ASSERT_EQ(run_here("run tiny.yaml --quiet").code, 0);
  ASSERT_EQ(run_here("report --index results").code, 0);
  const std::filesystem::path index = folder_ / "results" / "README.md";
  const std::string before = test::read_file(index);
  write_atomically(spec_file(), "title: Another title\n" + yaml());
  ASSERT_EQ(run_here("run tiny.yaml --quiet").code, 0);
  EXPECT_EQ(test::read_file(index), before);
  write_atomically(spec_file(), "title: A third title\n" + yaml());
  ASSERT_EQ(run_here("run tiny.yaml --stale --quiet").code, 0);
  EXPECT_NE(test::read_file(index).find("A third title"), std::string::npos) << test::read_file(index);
}

TEST_F(CliStale, EveryResultIsMadeWithItsOwnSettings) {
  ASSERT_EQ(run_here("run tiny.yaml --quiet --set samples=1 --out results/tiny").code, 0);
  ASSERT_EQ(run_here("run tiny.yaml --quiet --set samples=2 --set 'axes.budget=[16]' --out results/tiny-more").code, 0);
  write_atomically(spec_file(), test::replaced(yaml(), "seed: 5", "seed: 6"));
  const Output output = run_here("run tiny.yaml --stale --quiet");
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("2 made again"), std::string::npos) << output.text;
  for (const auto& [name, overrides] :
       {std::pair("tiny", R"(["samples=1"])"), std::pair("tiny-more", R"(["samples=2","axes.budget=[16]"])")}) {
    const auto manifest = nlohmann::json::parse(test::read_file(folder_ / "results" / name / "manifest.json"));
    EXPECT_EQ(manifest["overrides"].dump(), overrides);
    EXPECT_EQ(manifest["seed"], 6);
  }
}

TEST_F(CliStale, WhatFailsDoesNotStopTheOthers) {
  write_atomically(folder_ / "bad.yaml", "polices: [full]\n");
  const Output output = run_here("run bad.yaml tiny.yaml --stale --quiet");
  EXPECT_EQ(output.code, 2);
  EXPECT_NE(output.text.find("[1/2] bad\nkvlab: bad.yaml:1:1: unknown key 'polices'"), std::string::npos)
      << output.text;
  EXPECT_NE(output.text.find("[2/2] tiny\n"), std::string::npos) << output.text;
  EXPECT_NE(output.text.find("1 made again, 0 drawn again, 1 left out of date"), std::string::npos) << output.text;
  EXPECT_TRUE(made("tiny"));
}

TEST_F(CliStale, ADeviceThatIsNotHereIsSaidAndItsResultStays) {
  ASSERT_EQ(run_here("run tiny.yaml --quiet --set samples=1").code, 0);
  const std::filesystem::path file = folder_ / "results" / "tiny" / "manifest.json";
  const std::string manifest = test::replaced(test::read_file(file), R"("samples=1")", R"("device=abacus")");
  write_atomically(file, manifest);
  const Output output = run_here("run tiny.yaml --stale");
  EXPECT_EQ(output.code, 1);
  EXPECT_NE(output.text.find("tiny: stays out of date: it is made on device abacus, and "), std::string::npos)
      << output.text;
  EXPECT_NE(output.text.find("1 left out of date"), std::string::npos);
  EXPECT_EQ(test::read_file(file), manifest);
}

TEST_F(CliStale, DrawsAgainWhereOnlyThePageIsOlder) {
  ASSERT_EQ(run_here("run tiny.yaml --quiet --set samples=1").code, 0);
  const std::string rows = test::read_file(folder_ / "results" / "tiny" / "rows.csv");
  write_atomically(spec_file(),
                   test::replaced(yaml(), "tables: []", "tables: [{name: t, metric: nll_sum, rows: [policy]}]"));
  const Output output = run_here("run tiny.yaml --stale");
  EXPECT_EQ(output.code, 0);
  EXPECT_NE(output.text.find("are others: drawn again\n0 fresh, 0 made again, 1 drawn again"), std::string::npos)
      << output.text;
  EXPECT_EQ(test::read_file(folder_ / "results" / "tiny" / "rows.csv"), rows);
  EXPECT_NE(test::read_file(folder_ / "results" / "tiny" / "table.md").find("### t"), std::string::npos);
  EXPECT_NE(run_here("report results/tiny --adopt tiny.yaml").text.find("### t"), std::string::npos);
  write_atomically(spec_file(), test::replaced(yaml(), "seed: 5", "seed: 6"));
  const Output refused = run_here("report results/tiny --adopt tiny.yaml");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.text.find("its rows were made with another value of: seed"), std::string::npos) << refused.text;
}

TEST_F(CliStale, SettingsAreTheManifestsAlone) {
  const std::string spec = path("tiny.yaml");
  for (const char* option : {"--set samples=1", "--device cpu", "--out x", "--fresh", "--no-draw"}) {
    expect_refused(fmt::format("run {} --stale {}", spec, option), "each result's manifest has its settings");
  }
}

TEST_F(CliStale, ASpecWithoutRowsIsLeftToItsVerb) {
  write_atomically(folder_ / "profile.yaml", "model: " + reference() +
                                                 "\nprotocol: profile\nsamples: 1\ndata: [{task: kv, tokens: 256}]\n"
                                                 "policies: [{policy: keydiff}]\n");
  const Output output = run_here("run profile.yaml --stale");
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("profile: protocol profile makes no rows; kvlab profile profile.yaml"), std::string::npos)
      << output.text;
}

TEST_F(Cli, AVerdictIsDescribedAndABadOneIsRefusedBeforeAnythingRuns) {
  const std::string keys = run("describe verdicts").text;
  for (const char* key : {"criterion", "reproduced_if", "judged", "whole 95 % interval"}) {
    EXPECT_NE(keys.find(key), std::string::npos) << keys;
  }
  EXPECT_NE(run("describe spec").text.find("  verdict "), std::string::npos);
  write_atomically(folder_ / "verdict.yaml",
                   test::replaced(yaml(), "tables: []", "tables: [{name: t, metric: nll_sum, rows: [policy]}]") +
                       "verdict: [{item: a, criterion: c, fixed: afterwards, since: 2026-11-22, "
                       "reproduced_if: [{table: t, cel: {policy: h2o}, below: 1}]}]\n");
  const std::string refused = expect_refused("run " + path("verdict.yaml"), "did you mean 'cell'?");
  EXPECT_NE(refused.find("verdict.yaml:10:"), std::string::npos) << refused;
}

}  // namespace
}  // namespace kv
