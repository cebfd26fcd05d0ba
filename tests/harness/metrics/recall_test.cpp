#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/harness/metrics/replayed.h"
#include "tests/ref/naive_metrics.h"

// Metrics on the oracle importance: recall, eviction_curve.

namespace kv::test {
namespace {

constexpr double kRounded = 1e-6;

// One head that attends in proportion to 1, 2, 3, 4, 5, 6, ‖v‖ = √2: at an event after four tokens the largest future
// attention is query 4's, so importance is in proportion to 1, 2, 3, 4.
class RecallByHand : public ::testing::Test {
 protected:
  ReplayedCase decode(const std::vector<float>& scores, Protection protection = {}) {
    const int32_t length = 6;
    ReplayedCase own{source_, *backend_, {tiny_sample(6)}, decode_schedule({&length, 1}, 2, 2)};
    own.block = 2;
    own.scorer = ranking(scores, protection);
    return own;
  }
  ReplayedCase one_shot(const std::vector<float>& scores, Protection protection = {}) {
    const int32_t length = 6, context = 4, keep = 2;
    ReplayedCase own{source_, *backend_, {tiny_sample(6)}, one_shot_schedule({&length, 1}, {&context, 1}, {&keep, 1})};
    own.decode_time = false;
    own.scorer = ranking(scores, protection);
    return own;
  }
  static std::unique_ptr<Scorer> ranking(const std::vector<float>& scores, Protection protection) {
    return std::make_unique<ByPosition>(
        [=](int, int, int32_t position) { return scores[static_cast<size_t>(position)]; }, protection);
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  WithOutput source_{*backend_, ref::tiny_info(1, 1, 1, 2), {ref::weighted_sample({{1, 2, 3, 4, 5, 6}})}};
};

TEST_F(RecallByHand, RecallByHand) {
  auto own = decode({9, 1, 2, 8});  // keeps 0 and 3: importance 5 of 10, the best two have 7
  const auto rows = measure(own, "recall", {{"detail", "head", ""}});
  EXPECT_NEAR(value(rows, "recall"), 0.5, kRounded);
  EXPECT_NEAR(value(rows, "recall_oracle"), 0.7, kRounded);
  EXPECT_NEAR(value(rows, "optimality_gap"), 0.2, kRounded);
  EXPECT_NEAR(value(rows, "eviction_loss"), 0.5, kRounded);
  ASSERT_TRUE(find(rows, "recall_head", {}, 0, 0, 0));
  EXPECT_NEAR(find(rows, "recall_head", {}, 0, 0, 0)->value, 0.5, kRounded);
}

TEST_F(RecallByHand, UnnormalisedLossIsInUnitsOfAttentionTimesNorm) {
  auto own = decode({9, 1, 2, 8});
  // Positions 1 and 2: (2 + 3)/15 · √2.
  EXPECT_NEAR(value(measure(own, "recall", {{"normalise", "none", ""}}), "eviction_loss"), std::sqrt(2.0) / 3,
              kRounded);
}

TEST_F(RecallByHand, KeepingByImportanceIsOptimal) {
  auto own = decode({1, 2, 3, 4});
  const auto rows = measure(own, "recall");
  EXPECT_EQ(value(rows, "recall"), value(rows, "recall_oracle"));
  EXPECT_EQ(value(rows, "optimality_gap"), 0);
}

TEST_F(RecallByHand, ProtectedEntriesCountUnlessLeftOut) {
  auto own = decode({9, 1, 8, 0}, {.sinks = 0, .recent = 1});
  // 3 is protected, 0 chosen: importance 4 + 1 of 10, the best two have 7.
  const auto all = measure(own, "recall");
  EXPECT_NEAR(value(all, "recall"), 0.5, kRounded);
  EXPECT_NEAR(value(all, "recall_oracle"), 0.7, kRounded);
  // Without 3, of 0, 1, 2 (importance 1, 2, 3) position 0 stays, 2 would be best.
  auto again = decode({9, 1, 8, 0}, {.sinks = 0, .recent = 1});
  const auto chosen = measure(again, "recall", {{"candidates", "unprotected", ""}});
  EXPECT_NEAR(value(chosen, "recall"), 1.0 / 6, kRounded);
  EXPECT_NEAR(value(chosen, "recall_oracle"), 3.0 / 6, kRounded);
}

TEST_F(RecallByHand, ABlockThatStraddlesTheEventDoesNotCount) {
  auto own = decode({9, 1, 2, 8});
  own.block = 5;  // of blocks [0, 5) and [5, 6) only the second begins after the event: the same proportions
  const auto rows = measure(own, "recall", {{"normalise", "none", ""}});
  EXPECT_NEAR(value(rows, "recall"), 0.5, kRounded);
  EXPECT_NEAR(value(rows, "eviction_loss"), std::sqrt(2.0) * 5 / 21, kRounded);
  auto none = decode({9, 1, 2, 8});
  none.block = 8;
  EXPECT_EQ(skipped(measure(none, "recall"), "recall"), "no query follows the events");
}

TEST_F(RecallByHand, FullIsSkipped) {
  auto own = decode({0, 0, 0, 0});
  own.scorer = nullptr;
  EXPECT_EQ(skipped(measure(own, "recall"), "recall"), "nothing is evicted");
  EXPECT_EQ(skipped(measure(own, "recall"), "eviction_loss"), "nothing is evicted");
}

TEST_F(RecallByHand, CurveByHand) {
  auto own = one_shot({9, 1, 2, 8});  // order 0, 3, 2, 1: 1, 5, 8, 10 of 10
  const auto rows = measure(own, "eviction_curve", {{"points", "4", ""}});
  const double policy[] = {1, 0.8, 0.5, 0.1, 0};
  const double oracle[] = {1, 0.9, 0.7, 0.4, 0};
  for (int i = 0; i <= 4; ++i) {
    EXPECT_NEAR(value(rows, "eviction_curve", i / 4.0), policy[i], kRounded) << i;
    EXPECT_NEAR(value(rows, "eviction_curve_oracle", i / 4.0), oracle[i], kRounded) << i;
  }
}

TEST_F(RecallByHand, CurveKeepsProtectedEntriesFirstWhateverTheirScores) {
  auto own = one_shot({std::nanf(""), 3, 7, std::nanf("")}, {.sinks = 1, .recent = 1});  // order 0, 3, 2, 1
  const auto rows = measure(own, "eviction_curve", {{"points", "4", ""}});
  EXPECT_NEAR(value(rows, "eviction_curve", 0.75), 0.1, kRounded);
  EXPECT_NEAR(value(rows, "eviction_curve", 0.5), 0.5, kRounded);
  EXPECT_NEAR(value(rows, "eviction_curve", 0.25), 0.8, kRounded);
}

TEST_F(RecallByHand, CurveAtTheKeptFractionIsTheRecallOfTheEvent) {
  auto curve = one_shot({3, 1, 4, 2});
  auto event = one_shot({3, 1, 4, 2});
  EXPECT_NEAR(value(measure(curve, "eviction_curve", {{"points", "2", ""}}), "eviction_curve", 0.5),
              value(measure(event, "recall"), "recall"), 1e-12);
}

TEST_F(RecallByHand, CurveNeedsOneShotCompression) {
  auto own = decode({9, 1, 2, 8});
  EXPECT_EQ(skipped(measure(own, "eviction_curve"), "eviction_curve"), "a curve needs one-shot compression");
}

// What was resident and what stayed, by its own reading of the cache.
class Events final : public Observer {
 public:
  struct Event {
    int layer = 0;
    int row = 0;
    int32_t seen = 0;
    std::vector<int32_t> candidates;
    std::vector<int32_t> kept;
  };
  void evicting(const EvictionView& view) override {
    for (int row = 0; row < view.layer.rows(); ++row) {
      const size_t sequence = static_cast<size_t>(row / view.layer.kv_heads);
      if (!view.sequences_due[sequence]) continue;
      Event event{.layer = view.layer.layer, .row = row, .seen = view.tokens_seen[sequence]};
      const int32_t length = view.layer.lengths[static_cast<size_t>(row)];
      for (int32_t slot = 0; slot < length; ++slot) {
        const PagedView& cache = view.layer.cache;
        const int64_t page = cache.page_table[row * cache.max_pages + slot / kPageTokens];
        const int32_t position = cache.positions[page * kPageTokens + slot % kPageTokens];
        if (position < view.protection.sinks || slot >= length - view.protection.recent) continue;
        event.candidates.push_back(position);
        if (view.keep[row * view.pitch + slot]) event.kept.push_back(position);
      }
      events_.push_back(std::move(event));
    }
  }
  std::vector<Event> events_;
};

// Grouped heads, two layers, two sequences, several events, against scalar doubles.
class GroupedRecall : public ::testing::TestWithParam<std::string> {};

TEST_P(GroupedRecall, MatchesTheReference) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = ref::tiny_info(2, 4, 2, 8);
  const int32_t lengths[] = {60, 41};
  const std::vector<ref::TinySample> tensors = {ref::random_sample(info, 60, 3), ref::random_sample(info, 41, 4)};
  WithOutput source(*backend, info, tensors);
  Events events;
  ReplayedCase own{source, *backend, {tiny_sample(60), tiny_sample(41, 1)}, decode_schedule(lengths, 16, 8)};
  own.block = 4;
  own.others = {&events};
  own.scorer = std::make_unique<ByPosition>(
      [](int layer, int row, int32_t position) { return static_cast<float>((position * 37 + row * 11 + layer) % 64); },
      Protection{.sinks = 1, .recent = 3});
  const auto rows = measure(own, "recall", {{"group", GetParam(), ""}, {"candidates", "unprotected", ""}});

  for (int s = 0; s < 2; ++s) {
    double recall = 0, oracle = 0, loss = 0;
    double count = 0;
    std::map<std::pair<int, int32_t>, std::vector<ref::Shares>> layers;  // by layer and event
    for (const auto& event : events.events_) {
      if (event.row / 2 != s) continue;
      const auto& own_tensors = tensors[static_cast<size_t>(s)];
      const size_t layer = static_cast<size_t>(event.layer);
      std::vector<double> importance(static_cast<size_t>(event.seen), 0);
      for (int g = 0; g < 2; ++g) {
        const int head = event.row % 2 * 2 + g;
        const auto a =
            ref::probabilities(own_tensors.queries[layer], own_tensors.keys[layer], lengths[s], 4, 2, 8, head);
        const auto most = ref::future_max(a, event.seen);
        for (size_t j = 0; j < most.size(); ++j) {
          double square = 0;
          for (size_t d = 0; d < 8; ++d) {
            const double v = own_tensors.values[layer][(j * 2 + static_cast<size_t>(event.row % 2)) * 8 + d];
            square += v * v;
          }
          const double part = most[j] * std::sqrt(square);
          importance[j] = GetParam() == "max" ? std::max(importance[j], part) : importance[j] + part;
        }
      }
      const auto shares = ref::shares(importance, event.candidates, event.kept);
      recall += shares.kept / shares.total;
      oracle += shares.best / shares.total;
      ++count;
      layers[{event.layer, event.seen}].push_back(shares);
    }
    for (const auto& [key, heads] : layers) {
      double total = 0, lost = 0;
      for (const auto& shares : heads) {
        total += shares.total;
        lost += shares.total - shares.kept;
      }
      loss += lost / total / static_cast<double>(layers.size());
    }
    // Each head has the same number of events, so the mean of means is the mean.
    EXPECT_NEAR(value(rows, "recall", {}, s), recall / count, 1e-5);
    EXPECT_NEAR(value(rows, "recall_oracle", {}, s), oracle / count, 1e-5);
    EXPECT_NEAR(value(rows, "eviction_loss", {}, s), loss, 1e-5);
    EXPECT_GT(value(rows, "optimality_gap", {}, s), 0.01);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, GroupedRecall, ::testing::Values("mean", "max", "sum"));

}  // namespace
}  // namespace kv::test
