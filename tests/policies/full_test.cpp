#include <gtest/gtest.h>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"

namespace kv::ref {
namespace {

const Frozen frozen{"full", {0xcbf29ce484222325, 0xcbf29ce484222325}};

TEST(Full, NeverEvicts) {
  EXPECT_EQ(make_policy("full", {}).scorer, nullptr);
  EXPECT_TRUE(kept_by("full", {}, {{1, 2, 3, 4, 5, 6}}, 2, 1).empty());
}

TEST(Full, HasNoOptions) {
  expect_bad_option("full", {{"sinks", "4", ""}}, "full: sinks = 4: unknown option (there are none)");
}

}  // namespace
}  // namespace kv::ref
