#include "harness/result_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "harness/files.h"
#include "harness/host_name.h"
#include "kernels/error.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

class ResultFolders : public testing::Test {
 protected:
  fs::path out() const { return folder_ / "out"; }
  std::string content(const char* name) const { return read_file(out() / name); }
  size_t files() const {
    return static_cast<size_t>(std::count_if(fs::directory_iterator(out()), fs::directory_iterator(),
                                             [](const auto& entry) { return entry.path().filename() != ".held-by"; }));
  }
  test::TempFolder folder_;
};

TEST_F(ResultFolders, IsRefusedToASecondRunAndFreeAgainAfterTheFirst) {
  {
    const ResultFolder first(out());
    EXPECT_EQ(test::user_error([&] { ResultFolder second(out()); }),
              fmt::format("'{}' is being written by process {} on {}, another kvlab run or report; wait for it, or "
                          "name another folder",
                          out().string(), ::getpid(), host_name()));
  }
  EXPECT_FALSE(fs::exists(out() / ".held-by"));
  const ResultFolder third(out());
  EXPECT_EQ(files(), 0U);  // nothing of the test of the disk stays
}

// Locks may not reach from one machine to another; a killed run of this one is nobody's trouble.
TEST_F(ResultFolders, SayWhoOfAnotherMachineHadThem) {
  fs::create_directories(out());
  for (const auto& [left, said] :
       {std::pair<std::string, bool>("process 7 on another", true), {"process 7 on " + host_name(), false}}) {
    write_atomically(out() / ".held-by", left);
    testing::internal::CaptureStderr();
    const ResultFolder folder(out());
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              said ? "kvlab: " + left + " has not said that it ended; if it has not, let it end first\n" : "");
    EXPECT_EQ(read_file(out() / ".held-by"), fmt::format("process {} on {}", ::getpid(), host_name()));
  }
}

TEST_F(ResultFolders, ReplacesAllFilesOrNone) {
  const ResultFolder folder(out());
  folder.replace([](const fs::path& files) {
    write_atomically(files / "rows.csv", "old rows");
    write_atomically(files / "table.md", "old table");
  });
  EXPECT_THROW(folder.replace([](const fs::path& files) {
    write_atomically(files / "rows.csv", "new rows");
    throw std::runtime_error("no picture");
  }),
               std::runtime_error);
  EXPECT_EQ(content("rows.csv"), "old rows");
  EXPECT_EQ(files(), 2U);
  write_atomically(out() / "columns.csv.xz", "packed");
  folder.replace([](const fs::path& files) { write_atomically(files / "rows.csv", "new rows"); });
  EXPECT_EQ(content("rows.csv"), "new rows");
  EXPECT_EQ(content("table.md"), "old table");
  EXPECT_EQ(files(), 2U);
}

// A run that was killed while its files moved in: the table had, the rows had not.
TEST_F(ResultFolders, EndsWhatAKilledRunHadBegun) {
  fs::create_directories(out() / ".next");
  write_atomically(out() / "rows.csv", "old rows");
  write_atomically(out() / "table.md", "new table");
  write_atomically(out() / ".next" / "rows.csv", "new rows");
  const ResultFolder folder(out());
  EXPECT_EQ(content("rows.csv"), "new rows");
  EXPECT_EQ(content("table.md"), "new table");
  EXPECT_EQ(files(), 2U);
}

// Killed before its files were complete: they are of no use.
TEST_F(ResultFolders, KeepsTheOldFilesWhereTheNewOnesWereNotComplete) {
  fs::create_directories(out() / ".next.partial");
  write_atomically(out() / "rows.csv", "old rows");
  write_atomically(out() / ".next.partial" / "rows.csv", "half");
  const ResultFolder folder(out());
  EXPECT_EQ(content("rows.csv"), "old rows");
  folder.replace([](const fs::path& files) { write_atomically(files / "table.md", "table"); });
  EXPECT_EQ(content("rows.csv"), "old rows");
}

TEST_F(ResultFolders, AFolderThatCannotBeMadeLeavesNothing) {
  write_atomically(folder_ / "file", "x");
  EXPECT_THROW(ResultFolder(folder_ / "file" / "out"), UserError);
}

}  // namespace
}  // namespace kv
