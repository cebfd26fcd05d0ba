#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/error.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/replayed.h"

namespace kv::test {
namespace {

using Options = std::vector<GivenParam>;

constexpr double kRounded = 1e-6;
constexpr int32_t kLength = 30, kContext = 24;

// What each head kept at the only event.
class Counts final : public Observer {
 public:
  std::vector<int32_t> kept;
  void evicting(const EvictionView& view) override { kept.insert(kept.end(), view.kept.begin(), view.kept.end()); }
};

class Optimal : public testing::Test {
 protected:
  struct Run {
    double loss = 0;
    std::vector<int32_t> kept;  // [layers · kv_heads]
  };

  // Scores are drawn, so that many entries are lost in a bad order.
  static float score(uint32_t seed, int layer, int row, int32_t position) {
    return ref::random_values(1, seed * 100000 + static_cast<uint32_t>(layer * 10000 + row * 1000 + position))[0];
  }

  Run run(int layers, uint32_t seed, int32_t keep, SlotChoice allocation, uint32_t score_seed = 1,
          Recut::Keep recut = {}, int block = 1) {
    const SourceInfo info = ref::tiny_info(layers, 4, 2, 8);
    WithOutput source(*backend_, info, {ref::random_sample(info, kLength, seed)});
    ReplayedCase replayed{
        source, *backend_, {tiny_sample(kLength)}, one_shot_schedule({&kLength, 1}, {&kContext, 1}, {&keep, 1})};
    replayed.decode_time = false;
    replayed.block = block;
    replayed.scorer = std::make_unique<ByPosition>(
        [=](int layer, int row, int32_t position) { return score(score_seed, layer, row, position); });
    replayed.allocation = std::move(allocation);
    replayed.recut = std::move(recut);
    Counts counts;
    replayed.others = {&counts};
    const auto rows = measure(replayed, "recall");
    return {block == 1 ? value(rows, "eviction_loss") : 0, std::move(counts.kept)};
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
};

TEST_F(Optimal, NoOtherAllocationLosesLess) {
  bool any_better = false;
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    for (const int32_t keep : {3, 12, 20}) {
      const double best = run(3, seed, keep, {"optimal"}).loss;
      const double uniform = run(3, seed, keep, {"uniform"}).loss;
      EXPECT_LE(best, uniform + kRounded);
      EXPECT_LE(best, run(3, seed, keep, {"ada"}).loss + kRounded);
      EXPECT_LE(best, run(3, seed, keep, {"ada", {{"scope", "model", ""}}}).loss + kRounded);
      EXPECT_LE(best, run(3, seed, keep, {"optimal", {{"solver", "hull", ""}}}).loss + kRounded);
      EXPECT_LE(best, run(3, seed, keep, {"optimal", {{"order", "oracle", ""}}}).loss + kRounded);
      EXPECT_EQ(best, run(3, seed, keep, {"optimal", {{"solver", "exact", ""}}}).loss);
      if (keep > 8) {
        EXPECT_LE(best, run(3, seed, keep, {"pyramid", {{"beta", "1.2", ""}, {"window", "1", ""}}}).loss + kRounded);
      }
      any_better = any_better || best < uniform * 0.95;
    }
  }
  EXPECT_TRUE(any_better) << "the cases show nothing";
}

// One layer of two heads with 24 entries each, 10 of which stay in all: every way to divide them, as the metric sees
// it.
TEST_F(Optimal, EqualsTheBestOfAllDivisions) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    double best = std::numeric_limits<double>::infinity();
    for (int first = 0; first <= 10; ++first) {
      const Recut::Keep best_of = [&](int row, int32_t slot) {
        int better = 0;
        for (int32_t other = 0; other < kContext; ++other) better += score(1, 0, row, other) > score(1, 0, row, slot);
        return better < (row == 0 ? first : 10 - first);
      };
      best = std::min(best, run(1, seed, 5, {"uniform"}, 1, best_of).loss);
    }
    EXPECT_NEAR(run(1, seed, 5, {"optimal"}).loss, best, kRounded);
  }
}

TEST_F(Optimal, InTheOraclesOrderCountsDoNotDependOnTheScorer) {
  const Options oracle = {{"order", "oracle", ""}};
  EXPECT_EQ(run(3, 1, 8, {"optimal", oracle}, 1).kept, run(3, 1, 8, {"optimal", oracle}, 2).kept);
  EXPECT_NE(run(3, 1, 8, {"optimal"}, 1).kept, run(3, 1, 8, {"optimal"}, 2).kept);
}

TEST_F(Optimal, DividesUniformlyWhatNothingFollows) {
  // Blocks of 16: the one that the event at 24 falls into is the last.
  EXPECT_EQ(run(2, 1, 7, {"optimal"}, 1, {}, 16).kept, std::vector<int32_t>(4, 7));
}

// Later events find holes in the cache: a slot is then no position.
TEST_F(Optimal, DividesWhatIsStillResident) {
  const SourceInfo info = ref::tiny_info(2, 4, 2, 8);
  WithOutput source(*backend_, info, {ref::random_sample(info, kLength, 1)});
  ReplayedCase replayed{source, *backend_, {tiny_sample(kLength)}, decode_schedule({&kLength, 1}, 10, 5)};
  // Old entries stay, so that the newest importance lies where slots and positions differ.
  replayed.scorer =
      std::make_unique<ByPosition>([](int, int, int32_t position) { return static_cast<float>(position % 7); });
  replayed.allocation = {"optimal"};
  Counts counts;
  replayed.others = {&counts};
  const double loss = value(measure(replayed, "recall"), "eviction_loss");
  ASSERT_EQ(counts.kept.size() % 4, 0U);
  ASSERT_GE(counts.kept.size(), 8U);
  for (size_t i = 0; i < counts.kept.size(); i += 4) {
    EXPECT_EQ(std::accumulate(counts.kept.begin() + static_cast<int64_t>(i),
                              counts.kept.begin() + static_cast<int64_t>(i) + 4, 0),
              40);
  }
  EXPECT_LT(loss, 1);
}

// One event of each of two contexts, one of which is too long for the exact solver.
TEST_F(Optimal, RowsSayWhichSolverDividedEachInput) {
  const SourceInfo info = ref::tiny_info(1, 2, 2, 8);
  const std::vector<int32_t> lengths = {128, 4224}, contexts = {64, 4160}, keep = {16, 16};
  const auto splits = [&](const char* solver) {
    WithOutput source(*backend_, info, {ref::random_sample(info, 128, 1), ref::random_sample(info, 4224, 2)});
    ReplayedCase replayed{
        source, *backend_, {tiny_sample(128), tiny_sample(4224, 1)}, one_shot_schedule(lengths, contexts, keep)};
    replayed.decode_time = false;
    replayed.block = 64;
    replayed.scorer = std::make_unique<ByPosition>(
        [](int layer, int row, int32_t position) { return score(1, layer, row, position); });
    replayed.allocation = {"optimal", {{"solver", solver, ""}}};
    const auto rows = measure(replayed, "recall");
    std::vector<double> all;
    for (const int sample : {0, 1}) {
      all.push_back(value(rows, "exact_splits", {}, sample));
      all.push_back(value(rows, "hull_splits", {}, sample));
    }
    return all;
  };
  EXPECT_EQ(splits("auto"), (std::vector<double>{1, 0, 0, 1}));
  EXPECT_EQ(splits("hull"), (std::vector<double>{0, 1, 0, 1}));
  try {
    splits("exact");
    FAIL() << "not refused";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "budget: head 0 has 4160 entries: expected at most 4096 for an exact split");
  }
}

// Not its scorer, which needs no future.
TEST_F(Optimal, IsNamedWhereNobodyKnowsTheFuture) {
  const SourceInfo info = ref::tiny_info(1, 4, 2, 8);
  ref::TinySource source(*backend_, info, {ref::random_sample(info, kLength, 1)});
  Policy policy = make_policy("keydiff", {}, {.allocation = {"optimal"}});
  const std::vector<int32_t> ids(kLength, 0);
  const std::span<const int32_t> sequences[] = {ids};
  const Schedule schedule = decode_schedule({&kLength, 1}, 10, 5);
  EXPECT_EQ(user_error([&] {
              replay({.backend = *backend_,
                      .source = source,
                      .policy = policy,
                      .sequences = sequences,
                      .schedule = schedule,
                      .budget = 10,
                      .interval = 5});
            }),
            "optimal: needs the full-cache pass (it is an oracle), which tiny does not offer here");
}

TEST_F(Optimal, NeedsTheOutputProjection) {
  const SourceInfo info = ref::tiny_info(1, 4, 2, 8);
  const Baseline future;
  try {
    make_allocation("optimal", {})->begin({.backend = backend_.get(), .source = &info, .future = &future});
    FAIL() << "not refused";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "optimal: needs the output projection, which tiny lacks");
  }
}

}  // namespace
}  // namespace kv::test
