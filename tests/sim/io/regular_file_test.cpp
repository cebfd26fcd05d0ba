#include "sim/io/regular_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

using test::TempFolder;
using test::user_error;

TEST(RegularFile, GivesEveryByteOfAFileThatMayBeEmpty) {
  const TempFolder folder;
  const std::string bytes = std::string(100'000, 'a') + '\0' + "\xff\n";
  test::write_file(folder / "bytes", bytes);
  test::write_file(folder / "empty", "");
  EXPECT_EQ(RegularFile(folder / "bytes").read(), bytes);
  EXPECT_EQ(RegularFile(folder / "empty").read(), "");
}

// Each of them would be read for ever, or waited for.
TEST(RegularFile, RefusesWhatHasNoEndAtOnce) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink(folder / "loop", folder / "loop");
  for (const std::filesystem::path& path : {folder / "pipe", std::filesystem::path("/dev/zero"), folder.path()}) {
    EXPECT_EQ(user_error([&] { RegularFile{path}; }), path.string() + ": cannot read: not a regular file");
  }
  EXPECT_EQ(user_error([&] { RegularFile{folder / "none"}; }),
            (folder / "none").string() + ": cannot read: No such file or directory");
  EXPECT_EQ(user_error([&] { RegularFile{folder / "loop"}; }),
            (folder / "loop").string() + ": cannot read: Too many levels of symbolic links");
}

}  // namespace
}  // namespace kv
