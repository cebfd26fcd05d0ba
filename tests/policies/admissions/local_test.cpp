// Local attention: which tokens a query sees and the cache keeps, and what is refused.

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "sim/replay/replay.h"
#include "tests/support/entries_left.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/sights.h"

namespace kv::ref {
namespace {

// Query 7 sees two sinks, and a window of three with itself.
TEST(Local, ShowsSinksAndTheNewest) {
  const auto backend = make_backend("cpu");
  TinySource source(*backend, tiny_info(1, 2, 1, 8), {random_sample(tiny_info(1, 2, 1, 8), 12, 1)});
  const Sights seen = sights(source, *backend, {"local", {{"sinks", "2", ""}, {"window", "3", ""}}}, {12});
  EXPECT_EQ(seen.at({0, 0, 0}).at(7), (std::set<int32_t>{0, 1, 5, 6, 7}));
}

// The newest token, at 39, saw the window's 8.
TEST(Local, LeavesSinksAndTheWindow) {
  EXPECT_EQ(entries_left({"local", {{"sinks", "3", ""}, {"window", "8", ""}}}), (std::vector<int32_t>{11, 11, 11, 11}));
  EXPECT_EQ(entries_left({"local", {{"sinks", "0", ""}, {"window", "1", ""}}}), (std::vector<int32_t>{1, 1, 1, 1}));
  EXPECT_EQ(entries_left({"local"}), (std::vector<int32_t>{40, 40, 40, 40}));
}

TEST(Local, RefusesAWindowOfNothingAndOneThatNoTextFills) {
  const auto refusal = [](const char* key, const char* value) {
    return test::user_error([&] { make_policy("full", {}, {.admission = {"local", {{key, value, ""}}}}); });
  };
  EXPECT_EQ(refusal("window", "0"), "local: window = 0: expected at least 1");
  EXPECT_EQ(refusal("window", "16777217"), "local: window = 16777217: expected at most 16777216");
  EXPECT_EQ(refusal("window", "2147483647"), "local: window = 2147483647: expected at most 16777216");
  EXPECT_EQ(refusal("sinks", "2147483647"), "local: sinks = 2147483647: expected at most 16777216");
}

// The largest window that may be asked for is one: nothing has left.
TEST(Local, LeavesEverythingToTheLargestWindow) {
  EXPECT_EQ(entries_left({"local", {{"sinks", "4", ""}, {"window", "16777216", ""}}}),
            (std::vector<int32_t>{40, 40, 40, 40}));
}

// What judges by more queries than the window has tokens would find an entry too few.
TEST(Local, AScorersWindowIsNoLongerThanTheAdmissions) {
  const auto refusal_of = [](const char* scorer, const char* queries, const char* window) {
    std::vector<GivenParam> options;
    if (*queries != 0) options.push_back({"window", queries, ""});
    const Policy policy = make_policy(scorer, options, {.admission = {"local", {{"window", window, ""}}}});
    try {
      check_admission(policy, 32);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* queries : {"9", "20"}) {
    EXPECT_EQ(refusal_of("snapkv", queries, "8"),
              std::string("snapkv: judges by the newest ") + queries +
                  " queries, expected no more than the 8 tokens for which admission local lets all see an entry");
  }
  EXPECT_EQ(refusal_of("snapkv", "8", "8"), "");
  EXPECT_EQ(refusal_of("tova", "", "1"), "");
}

// As many queries as the window has tokens find their entries in every head, though next to nothing else was let in.
TEST(Local, AScorerWithAsManyQueriesFindsEnough) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(2, 2, 2, 8);
  TinySource source(*backend, info, {random_sample(info, 40, 1)});
  Policy policy =
      make_policy("snapkv", {{"window", "8", ""}}, {.admission = {"local", {{"sinks", "2", ""}, {"window", "8", ""}}}});
  const std::vector<int32_t> ids(40, 0);
  const std::span<const int32_t> sequences[] = {ids};
  const int32_t length = 40, keep = 9;
  const ReplayResult result = replay({.backend = *backend,
                                      .source = source,
                                      .policy = policy,
                                      .sequences = sequences,
                                      .schedule = one_shot_schedule({&length, 1}, {&length, 1}, {&keep, 1}, 40)});
  EXPECT_EQ(result.sequences[0].end_entries, 9 * 4);
}

}  // namespace
}  // namespace kv::ref
