#include "harness/files.h"

#include <gtest/gtest.h>

#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

TEST(Files, AreReplacedWholeAndLeaveNothingBeside) {
  const test::TempFolder folder;
  write_atomically(folder / "rows.csv", "a longer old text");
  write_atomically(folder / "rows.csv", "new");
  EXPECT_EQ(read_file(folder / "rows.csv"), "new");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(Files, ThatCannotBeWrittenNamePathAndReason) {
  const test::TempFolder folder;
  const auto path = folder / "missing" / "rows.csv";
  EXPECT_EQ(test::user_error([&] { write_atomically(path, "x"); }),
            "cannot write '" + path.string() + "': No such file or directory");
}

TEST(Files, ThatCannotReplaceTheirTargetLeaveNothingBeside) {
  const test::TempFolder folder;
  std::filesystem::create_directories(folder / "rows.csv" / "in_the_way");
  EXPECT_EQ(test::user_error([&] { write_atomically(folder / "rows.csv", "x"); }),
            "cannot write '" + (folder / "rows.csv").string() + "': Is a directory");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(Files, ThatAreGoneNeedNotBeRemoved) {
  const test::TempFolder folder;
  write_atomically(folder / "rows.csv", "x");
  remove_file(folder / "rows.csv");
  remove_file(folder / "rows.csv");
  EXPECT_EQ(folder.entries(), 0);
  std::filesystem::create_directories(folder / "rows.csv");
  EXPECT_EQ(test::user_error([&] { remove_file(folder / "rows.csv"); }),
            "cannot remove '" + (folder / "rows.csv").string() + "': Is a directory");
}

}  // namespace
}  // namespace kv
