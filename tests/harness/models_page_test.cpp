#include "harness/models_page.h"

#include <gtest/gtest.h>

#include "harness/files.h"
#include "harness/report/side_by_side.h"
#include "harness/results_index.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// Results of the specs base.yaml and big.yaml, which is like it. Numbers are the same in each sample.
class ModelsPage : public testing::Test {
 protected:
  ModelsPage() {
    fs::create_directories(root_ / "experiments");
    write_atomically(root_ / "experiments" / "base.yaml", spec("small", 10));
    write_atomically(root_ / "experiments" / "big.yaml", "like: base.yaml\nmodel: big\n");
    add("base", "base", "small", 10, {{"full", 1}, {"h2o", 2}, {"snapkv", 3}});
    add("big", "big", "big", 10, {{"full", 1}, {"h2o", 3}, {"snapkv", 2.5}});
  }

  static std::string spec(const std::string& model, int samples, int budget = 32) {
    return "# Who leads?\ntitle: Losses of | policies\nmodel: " + model +
           "\ndata: [{task: reason, tokens: 64}]\npolicies: [full, h2o, snapkv]\nmetrics: [loss]\n"
           "axes: {budget: " +
           std::to_string(budget) + "}\nsamples: " + std::to_string(samples) +
           "\ntables: [{name: t, title: Loss, metric: loss, rows: [policy], columns: [budget], better: lower, "
           "unranked: [full]}]\n"
           "verdict: [{item: 001 Table 2, criterion: c, fixed: beforehand, since: 2026-11-21, reproduced_if: "
           "[{table: t, cell: {policy: h2o}, over: {policy: snapkv}, below: 1, by: interval}, "
           "{table: t, cell: {policy: [h2o, snapkv]}, over: {policy: full}, above: 1}]}]\n";
  }

  void add(const std::string& folder, const std::string& experiment, const std::string& model, int samples,
           const std::vector<std::pair<std::string, double>>& losses, int budget = 32) {
    const fs::path result = root_ / "results" / folder;
    fs::create_directories(result);
    write_atomically(result / "spec.yaml", spec(model, samples, budget));
    write_atomically(result / "manifest.json",
                     R"({"experiment": ")" + experiment + R"(", "commit": "0123456", "date": "2026-11-22T12:29:59Z"})");
    std::vector<Row> rows;
    for (const auto& [policy, loss] : losses) {
      for (int sample = 0; sample < samples; ++sample) {
        rows.push_back({.experiment = experiment,
                        .model = model,
                        .data = "reason",
                        .policy = policy,
                        .sample = sample,
                        .metric = "loss",
                        .value = loss,
                        .axes = {std::to_string(budget)}});
      }
    }
    write_rows_atomically(result / "rows.csv", std::vector<std::string>{"budget"}, rows);
  }
  std::string page() const { return models_page(root_ / "results"); }
  void expect_line(const std::string& line) const {
    EXPECT_NE(page().find("\n" + line + "\n"), std::string::npos) << line << "\n" << page();
  }

  test::TempFolder folder_;
  const fs::path& root_ = folder_.path();
};

TEST_F(ModelsPage, HasALineAVerdictAFindingAndARankedTable) {
  EXPECT_TRUE(page().starts_with(kSideBySideStart));
  expect_line("## Losses of \\| policies");
  expect_line("small: [base](base/table.md), n = 10; big: [big](big/table.md), n = 10.");
  expect_line("| finding | must be | small | big | models agree | with the paper |");
  expect_line("| **001 Table 2** | | reproduced | differs | no | small alone |");
  expect_line(
      "| h2o / snapkv (t) | &lt; 1, interval | budget=32: 0.667<br>holds | budget=32: 1.200<br>does not hold | no | "
      "small alone |");
  expect_line(
      "| each / full (t) | > 1 | h2o, budget=32: 2.000<br>snapkv, budget=32: 3.000<br>holds | h2o, budget=32: 3.000<br>"
      "snapkv, budget=32: 2.500<br>holds | yes | both |");
  expect_line("| who leads | small | big | models agree |");
  expect_line(
      "| Loss (t) | budget=32: h2o, then snapkv (1.000 [1.000, 1.000]) | budget=32: snapkv, then h2o (0.500 [0.500, "
      "0.500]) | no |");
}

TEST_F(ModelsPage, OfSeveralResultsTakesTheOneWithTheMostSamples) {
  add("base-cuda", "base", "small", 12, {{"full", 1}, {"h2o", 4}, {"snapkv", 2}});
  expect_line("small: [base-cuda](base-cuda/table.md), n = 12; big: [big](big/table.md), n = 10.");
  expect_line("| **001 Table 2** | | differs | differs | yes | neither |");
}

TEST_F(ModelsPage, ANumberThatIsNotThereIsNoAgreement) {
  add("big", "big", "big", 10, {{"full", 1}, {"snapkv", 2.5}});
  expect_line("| h2o / snapkv (t) | &lt; 1, interval | budget=32: 0.667<br>holds | no number | – | – |");
  expect_line("| **001 Table 2** | | reproduced | untestable | – | – |");
  expect_line("| Loss (t) | budget=32: h2o, then snapkv (1.000 [1.000, 1.000]) | no number | – |");
}

// Variants of an experiment are like it, too: that of one model belongs to the same variant of the other.
TEST_F(ModelsPage, AVariantStandsBesideTheSameVariant) {
  write_atomically(root_ / "experiments" / "wide.yaml", "like: base.yaml\naxes: {budget: 64}\n");
  write_atomically(root_ / "experiments" / "wide-big.yaml", "like: base.yaml\nmodel: big\naxes: {budget: 64}\n");
  add("wide", "wide", "small", 10, {{"full", 1}, {"h2o", 2}, {"snapkv", 3}}, 64);
  add("wide-big", "wide-big", "big", 10, {{"full", 1}, {"h2o", 2}, {"snapkv", 3}}, 64);
  expect_line("small: [base](base/table.md), n = 10; big: [big](big/table.md), n = 10.");
  expect_line("small: [wide](wide/table.md), n = 10; big: [wide-big](wide-big/table.md), n = 10.");
  fs::remove_all(root_ / "results" / "wide");
  expect_line("small: [base](base/table.md), n = 10; big: [wide-big](wide-big/table.md), n = 10.");
}

// A training has neither verdict nor ranked table.
TEST_F(ModelsPage, WhereNothingCanBeComparedThereIsNoSection) {
  for (const char* result : {"base", "big"}) {
    const fs::path file = root_ / "results" / result / "spec.yaml";
    const std::string text = test::read_file(file);
    write_atomically(file, text.substr(0, text.find("tables: ")) + "tables: []\n");
  }
  EXPECT_EQ(page(), "");
}

TEST_F(ModelsPage, IsEmptyWithoutResultsOfTwoModels) {
  add("big", "big", "small", 10, {{"full", 1}, {"h2o", 2}});
  EXPECT_EQ(page(), "") << "both are of one model";
  fs::remove_all(root_ / "results" / "big");
  EXPECT_EQ(page(), "");
  fs::remove_all(root_ / "experiments");
  EXPECT_EQ(page(), "");
}

TEST_F(ModelsPage, StandsBesideTheIndexWhichLinksIt) {
  const fs::path file = root_ / "results" / "models.md", index = root_ / "results" / "README.md";
  write_index(root_ / "results");
  EXPECT_EQ(test::read_file(file), page());
  EXPECT_NE(test::read_file(index).find("side by side: [models.md](models.md)."), std::string::npos);
  fs::remove_all(root_ / "results" / "big");
  write_index(root_ / "results");
  EXPECT_FALSE(fs::exists(file));
  EXPECT_EQ(test::read_file(index).find("models.md"), std::string::npos);
  write_atomically(file, "my own notes\n");
  write_index(root_ / "results");
  EXPECT_EQ(test::read_file(file), "my own notes\n") << "the tool has not written it";
}

}  // namespace
}  // namespace kv
