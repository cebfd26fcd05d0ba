#include "harness/notice.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

TEST(OneLine, HasNoControlCharactersAndAnEnd) {
  EXPECT_EQ(one_line("a\nb\tc\x1b[31m\x7f µ"), "a?b?c?[31m? µ");
  EXPECT_EQ(one_line(std::string(2000, 'x')), std::string(2000, 'x'));
  EXPECT_EQ(one_line(std::string(2001, 'x')), std::string(2000, 'x') + "...");
  // A character of two bytes across the end goes as a whole.
  EXPECT_EQ(one_line(std::string(1999, 'x') + "µµ"), std::string(1999, 'x') + "...");
}

}  // namespace
}  // namespace kv
