#include "sim/io/mapped_file.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "sim/io/xz.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

using test::TempFolder;
using test::user_error;

TEST(MappedFile, ShowsTheBytesAndKeepsThemAcrossMoves) {
  const TempFolder folder;
  test::write_file(folder / "a", "first");
  test::write_file(folder / "b", "second one");
  MappedFile a = MappedFile::open(folder / "a");
  const auto* address = a.bytes().data();
  EXPECT_EQ(a.text(), "first");
  MappedFile moved = std::move(a);
  EXPECT_EQ(moved.bytes().data(), address);
  moved = MappedFile::open(folder / "b");
  EXPECT_EQ(moved.text(), "second one");
}

TEST(MappedFile, UnpacksWhatLiesPackedUnlessTheFileItselfIsThere) {
  const TempFolder folder;
  test::write_file(folder / "a.xz", xz("packed"));
  EXPECT_EQ(MappedFile::open(folder / "a").text(), "packed");
  EXPECT_NE(MappedFile::open(folder / "a.xz").text(), "packed") << "asked for by its own name, it is what it is";
  test::write_file(folder / "a", "plain");
  EXPECT_EQ(MappedFile::open(folder / "a").text(), "plain");
  test::write_file(folder / "b.xz", xz("").substr(0, 9));
  EXPECT_TRUE(user_error([&] { MappedFile::open(folder / "b"); }).starts_with((folder / "b.xz").string() + ": "));
  test::write_file(folder / "c.xz", xz(""));
  EXPECT_EQ(user_error([&] { MappedFile::open(folder / "c"); }), (folder / "c.xz").string() + ": the file is empty");
}

TEST(MappedFile, IsFoundByItsAddressesWhileItIsThere) {
  const TempFolder folder;
  test::write_file(folder / "a", "first");
  test::write_file(folder / "b", "second one");
  const MappedFile a = MappedFile::open(folder / "a");
  std::optional<MappedFile> b = MappedFile::open(folder / "b");
  const std::byte* const inside = b->bytes().data() + 9;
  EXPECT_EQ(mapped_file_at(a.bytes().data()), (folder / "a").string());
  EXPECT_EQ(mapped_file_at(inside), (folder / "b").string());
  EXPECT_EQ(mapped_file_at(inside + 1), nullptr);
  MappedFile moved = std::move(*b);
  b.reset();
  EXPECT_EQ(mapped_file_at(inside), (folder / "b").string());
  { const MappedFile gone = std::move(moved); }
  EXPECT_EQ(mapped_file_at(inside), nullptr);
}

TEST(MappedFile, RefusesWhatIsNotAFileWithBytes) {
  const TempFolder folder;
  test::write_file(folder / "empty", "");
  EXPECT_EQ(user_error([&] { MappedFile::open(folder / "none"); }),
            (folder / "none").string() + ": cannot read: No such file or directory");
  EXPECT_EQ(user_error([&] { MappedFile::open(folder / "empty"); }),
            (folder / "empty").string() + ": the file is empty");
  EXPECT_EQ(user_error([&] { MappedFile::open(folder.path()); }),
            folder.path().string() + ": cannot read: not a regular file");
}

}  // namespace
}  // namespace kv
