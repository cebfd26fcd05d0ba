#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/random_uniform.h"
#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"

namespace kv::ref {
namespace {

const Frozen frozen{"random", {0x83c1f7e1f9f6bace, 0x9a1f59665f220ec6}};

// The one event of T = 6, B = 3, L = 2 comes after 5 tokens: the three largest of the five slots' numbers stay.
std::vector<int32_t> three_largest(uint64_t seed) {
  std::vector<int32_t> slots = {0, 1, 2, 3, 4};
  std::sort(slots.begin(), slots.end(), [&](int32_t a, int32_t b) {
    return hash_uniform(seed, 0, 0, 5, static_cast<uint32_t>(a)) >
           hash_uniform(seed, 0, 0, 5, static_cast<uint32_t>(b));
  });
  slots.resize(3);
  std::sort(slots.begin(), slots.end());
  return slots;
}

std::vector<int32_t> kept_with_seed(uint64_t seed, const Options& options = {}) {
  const auto backend = make_backend("cpu");
  TinySource source(*backend, tiny_info(1, 1, 1, 2), {weighted_sample({{1, 1, 1, 1, 1, 1}})});
  RunArgs args = decode_run("random", options, {0}, {6}, 3, 2);
  args.seed = seed;
  const PolicyRun run = run_policy(source, *backend, args);
  EXPECT_EQ(run.events.size(), 1u);
  return run.events.at(0).kept;
}

TEST(Random, KeepsTheLargestHashes) {
  for (uint64_t seed = 1; seed <= 5; ++seed) EXPECT_EQ(kept_with_seed(seed), three_largest(seed));
}

TEST(Random, AnotherSeedKeepsOthers) {
  std::set<std::vector<int32_t>> seen;
  for (uint64_t seed = 1; seed <= 20; ++seed) seen.insert(kept_with_seed(seed));
  EXPECT_GT(seen.size(), 4u);  // of 10 possible sets
}

TEST(Random, ProtectsWhatIsAsked) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto kept = kept_with_seed(seed, {{"sinks", "1", ""}, {"recent", "1", ""}});
    EXPECT_EQ(kept.front(), 0);
    EXPECT_EQ(kept.back(), 4);
  }
}

// 64 of 128 entries stay in each of 4 rows, so 128 slots of each quarter are tossed: fair scores keep 64 ± 23 of them
// (4 sigma; sigma² <= 128/4).
TEST(Random, FavoursNoPlaceInTheCache) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(2, 2, 2, 2);
  TinySource source(*backend, info, {random_sample(info, 129, 3)});
  const PolicyRun run = run_policy(source, *backend, one_shot_run("random", {}, {0}, {129}, {64}));
  std::vector<int> quarters(4);
  for (const Event& event : run.events) {
    for (const int32_t position : event.kept) ++quarters[static_cast<size_t>(position / 32)];
  }
  for (const int quarter : quarters) EXPECT_NEAR(quarter, 64, 23);
  EXPECT_NE(run.events[0].kept, run.events[1].kept);
  EXPECT_NE(run.events[0].kept, run.events[2].kept);
}

TEST(Random, RefusesLessThanItProtects) {
  expect_refused("random", {{"sinks", "3", ""}, {"recent", "2", ""}}, 4, 1,
                 "random: budget 4 is less than the 5 protected entries");
}

}  // namespace
}  // namespace kv::ref
