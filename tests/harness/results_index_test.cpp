#include "harness/results_index.h"

#include <gtest/gtest.h>

#include "harness/files.h"
#include "harness/report/index.h"
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
    write_atomically(root_ / "experiments" / "x.yaml", "# x\n");
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
  EXPECT_NE(text.find("| [**Result a**](a/table.md)<br>Does it \\| work? | Table 2, page 7 | "
                      "[x.yaml](../experiments/x.yaml) | 3 | A CPU | 0123456 | 2026-11-22 | <a href=\"a/table.md\">"
                      "<img src=\"a/p.svg\" width=\"260\" alt=\"Result a\"></a> |\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("| 2026-11-22 |  |\n"), std::string::npos) << "b has no plot";
  EXPECT_LT(text.find("Result a"), text.find("Result b"));
  EXPECT_EQ(text.find("no-result"), std::string::npos);
}

TEST_F(ResultsIndex, IsKeptUpToDateOnceItIsThere) {
  refresh_index_beside(root_ / "results" / "a");
  EXPECT_FALSE(std::filesystem::exists(root_ / "results" / "README.md"));
  write_atomically(root_ / "results" / "README.md", "my own notes\n");
  refresh_index_beside(root_ / "results" / "a");
  EXPECT_EQ(index(), "my own notes\n");
  write_index(root_ / "results");
  std::filesystem::remove_all(root_ / "results" / "b");
  refresh_index_beside(root_ / "results" / "a/");
  EXPECT_NE(index().find("Result a"), std::string::npos);
  EXPECT_EQ(index().find("Result b"), std::string::npos);
}

// A run is complete whatever lies beside its folder.
TEST_F(ResultsIndex, StaysAsItWasWhereAFolderCannotBeRead) {
  write_index(root_ / "results");
  const std::string before = index();
  write_atomically(root_ / "results" / "b" / "spec.yaml", "no: [spec");
  EXPECT_NO_THROW(refresh_index_beside(root_ / "results" / "a"));
  EXPECT_EQ(index(), before);
  EXPECT_THROW(write_index(root_ / "results"), UserError) << "asked for by name, it says why not";
}

TEST_F(ResultsIndex, OfAFolderWithoutResultsIsRefused) {
  EXPECT_THROW(write_index(root_ / "experiments"), UserError);
  EXPECT_THROW(write_index(root_ / "nowhere"), UserError);
}

}  // namespace
}  // namespace kv
