#include "harness/build_info.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

TEST(BuildInfo, CommitIsAHashOrUnknown) {
  const std::string_view commit = build_info().commit;
  if (commit == "unknown") return;
  EXPECT_EQ(commit.size(), 40u);
  EXPECT_EQ(commit.find_first_not_of("0123456789abcdef"), std::string_view::npos);
}

TEST(BuildInfo, NamesCompilerFlagsAndLibraries) {
  EXPECT_NE(build_info().compiler.find_first_of("0123456789"), std::string_view::npos);
  EXPECT_NE(build_info().flags.find("-march="), std::string_view::npos);
  EXPECT_NE(build_info().libraries.find("fmt 9."), std::string_view::npos);
  EXPECT_FALSE(build_info().build_type.empty());
}

}  // namespace
}  // namespace kv
