#include "harness/results_index.h"

#include <gtest/gtest.h>

#include "harness/files.h"
#include "harness/report/index.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "kernels/error.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

class ResultsIndex : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"b", "a"}) {
      const std::filesystem::path folder = root_ / "results" / name;
      std::filesystem::create_directories(folder);
      write_atomically(folder / "spec.yaml",
                       "# Does it | work?\ntitle: Result " + std::string(name) +
                           "\nmodel: m\ndata: [{task: reason, tokens: 64}]\npolicies: [full]\nmetrics: [loss]\n"
                           "axes: {budget: 32}\nsamples: 3\n"
                           "paper: {t2: {table: Table 2, page: 7, values: [{policy: full, value: 1}]}}\n"
                           "plots: [{name: p, kind: bars, metric: nll_sum, x: policy}]\n");
      write_atomically(folder / "manifest.json", R"({"experiment": "x", "commit": "0123456789abcdef", "device": "cpu",)"
                                                 R"( "machine": {"cpu": "A CPU"}, "date": "2026-11-22T12:29:59Z"})");
    }
    std::filesystem::create_directories(root_ / "results" / "no-result");
    std::filesystem::create_directories(root_ / "experiments");
    write_atomically(root_ / "experiments" / "x.yaml", "title: x\n");
    write_atomically(root_ / "results" / "a" / "p.svg", "<svg/>");
  }
  std::string index() const { return read_file(root_ / "results" / "README.md"); }

  test::TempFolder folder_;
  const std::filesystem::path& root_ = folder_.path();
};

TEST_F(ResultsIndex, HasALineAResultFromItsSpecAndManifest) {
  write_index(root_ / "results");
  const std::string text = index();
  EXPECT_TRUE(text.starts_with(kIndexStart));
  EXPECT_NE(text.find("| [**Result a**](a/table.md)<br>Does it \\| work? | Table 2, page 7 |  | "
                      "[x.yaml](../experiments/x.yaml) | 3 | A CPU | 0123456 | 2026-11-22 | <a href=\"a/table.md\">"
                      "<img src=\"a/p.svg\" width=\"260\" alt=\"Result a\"></a> |\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("| 2026-11-22 |  |\n"), std::string::npos) << "b has no plot";
  EXPECT_LT(text.find("Result a"), text.find("Result b"));
  EXPECT_EQ(text.find("no-result"), std::string::npos);
}

TEST_F(ResultsIndex, IsWrittenAgainWhereItIsTheTools) {
  refresh_index(root_ / "results");
  EXPECT_FALSE(std::filesystem::exists(root_ / "results" / "README.md"));
  write_atomically(root_ / "results" / "README.md", "my own notes\n");
  refresh_index(root_ / "results");
  EXPECT_EQ(index(), "my own notes\n");
  write_index(root_ / "results");
  std::filesystem::remove_all(root_ / "results" / "b");
  refresh_index(root_ / "results");
  EXPECT_NE(index().find("Result a"), std::string::npos);
  EXPECT_EQ(index().find("Result b"), std::string::npos);
}

// What was made again is complete whatever lies beside it.
TEST_F(ResultsIndex, StaysAsItWasWhereAFolderCannotBeRead) {
  write_index(root_ / "results");
  const std::string before = index();
  write_atomically(root_ / "results" / "b" / "spec.yaml", "no: [spec");
  EXPECT_NO_THROW(refresh_index(root_ / "results"));
  EXPECT_EQ(index(), before);
  EXPECT_THROW(write_index(root_ / "results"), UserError) << "asked for by name, it says why not";
}

// The results a and b: their rows say that the loss of h2o is 2 and 4 times that of full.
class VerdictIndex : public ResultsIndex {
 protected:
  void SetUp() override {
    ResultsIndex::SetUp();
    for (const auto& [name, factor] : {std::pair("a", 2), std::pair("b", 4)}) {
      const std::filesystem::path folder = root_ / "results" / name;
      write_atomically(folder / "spec.yaml", spec("001 Table 2"));
      std::vector<Row> rows;
      for (const auto& [policy, value] : {std::pair("full", 1), std::pair("h2o", factor)}) {
        rows.push_back({.experiment = "x",
                        .model = "m",
                        .data = "reason",
                        .policy = policy,
                        .sample = 0,
                        .metric = "loss",
                        .value = value,
                        .axes = {"32"}});
      }
      write_rows_atomically(folder / "rows.csv", std::vector<std::string>{"budget"}, rows);
    }
    std::filesystem::create_directories(root_ / "experiments" / "papers");
    write_items(
        "{item: Table 2, measures: losses}, {item: Figure 1, measures: maps, missing: not | made}, "
        "{item: Figure 2, measures: more}");
  }
  static std::string spec(const std::string& item) {
    return "title: Result\nmodel: m\ndata: [{task: reason, tokens: 64}]\npolicies: [full, h2o]\nmetrics: [loss]\n"
           "axes: {budget: 32}\nsamples: 3\ntables: [{name: t, metric: loss, rows: [policy]}]\n"
           "verdict: [{item: " +
           item +
           ", criterion: c, fixed: beforehand, since: 2026-11-21, reproduced_if: [{table: t, cell: {policy: h2o}, "
           "over: "
           "{policy: full}, below: 3}]}]\n";
  }
  void write_items(const std::string& items) const {
    write_atomically(root_ / "experiments" / "papers" / "items.yaml",
                     "papers: [{paper: \"001\", title: P, items: [" + items + "]}]\n");
  }
  std::string refused() const {
    return test::user_error([&] { write_index(root_ / "results"); });
  }
};

TEST_F(VerdictIndex, HasALineAnItemWithEveryVerdictOrWhyItIsMissing) {
  write_index(root_ / "results");
  const std::string text = index();
  for (const char* line :
       {("| 001 Table 2 | losses | [x.yaml](../experiments/x.yaml) | [a](a/table.md)<br>[b](b/table.md) | "
         "0123456<br>0123456 | 3<br>3 | reproduced<br>differs | beforehand |\n"),
        "| 001 Figure 1 | maps | | | | | missing: not \\| made | |\n",
        "| 001 Figure 2 | more | | | | | missing: no result yet | |\n",
        "3 items: 1 not the same in every result, 2 missing.", "| 001 Table 2: differs | [x.yaml]"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST_F(VerdictIndex, RefusesAnItemThatThePaperDoesNotHave) {
  write_atomically(root_ / "results" / "b" / "spec.yaml", spec("001 Tabel 2"));
  EXPECT_NE(refused().find("verdict '001 Tabel 2': no such item of the paper, did you mean '001 Table 2'?"),
            std::string::npos)
      << refused();
  write_atomically(root_ / "results" / "b" / "spec.yaml", spec("a question of our own"));
  write_index(root_ / "results");
  EXPECT_NE(index().find("| a question of our own: differs |"), std::string::npos);
}

TEST_F(VerdictIndex, RefusesAnItemThatIsMissingAndThere) {
  write_items("{item: Table 2, measures: losses, missing: not made}");
  EXPECT_NE(refused().find("'001 Table 2' is said to be missing, but a has a verdict on it"), std::string::npos);
}

TEST_F(VerdictIndex, SaysWhereTheListOfItemsIsWrong) {
  for (const auto& [items, reason] :
       {std::pair("{item: Table 2, measures: losses, mising: x}", "did you mean 'missing'?"),
        std::pair("{measures: losses}", "lacks the key 'item'"),
        std::pair("{item: A, measures: b}, {item: A, measures: b}", "listed twice")}) {
    write_items(items);
    EXPECT_NE(refused().find(reason), std::string::npos) << refused();
    EXPECT_NE(refused().find("items.yaml"), std::string::npos);
  }
}

TEST_F(ResultsIndex, OfAFolderWithoutResultsIsRefused) {
  EXPECT_THROW(write_index(root_ / "experiments"), UserError);
  EXPECT_THROW(write_index(root_ / "nowhere"), UserError);
}

}  // namespace
}  // namespace kv
