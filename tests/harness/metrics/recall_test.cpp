#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/error.h"
#include "tests/ref/naive_metrics.h"
#include "tests/support/replayed.h"

// Metrics on the oracle importance: recall, eviction_curve.

namespace kv::test {
namespace {

// One head that attends in proportion to 1, 2, 3, 4, 5, 6, ‖v‖ = √2: at an event after four tokens the largest future
// attention is query 4's, so importance is in proportion to 1, 2, 3, 4.
class RecallByHand : public ::testing::Test {
 protected:
  ReplayedCase decode(const std::vector<float>& scores, Protection protection = {}) {
    const int32_t length = 6;
    ReplayedCase replayed{source_, *backend_, {tiny_sample(6)}, decode_schedule({&length, 1}, 2, 2)};
    replayed.block = 2;
    replayed.scorer = ranking(scores, protection);
    return replayed;
  }
  ReplayedCase one_shot(const std::vector<float>& scores, Protection protection = {}) {
    const int32_t length = 6, context = 4, keep = 2;
    ReplayedCase replayed{
        source_, *backend_, {tiny_sample(6)}, one_shot_schedule({&length, 1}, {&context, 1}, {&keep, 1})};
    replayed.decode_time = false;
    replayed.scorer = ranking(scores, protection);
    return replayed;
  }
  static std::unique_ptr<Scorer> ranking(const std::vector<float>& scores, Protection protection) {
    return std::make_unique<ByPosition>(
        [=](int, int, int32_t position) { return scores[static_cast<size_t>(position)]; }, protection);
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  WithOutput source_{*backend_, ref::tiny_info(1, 1, 1, 2), {ref::weighted_sample({{1, 2, 3, 4, 5, 6}})}};
};

TEST_F(RecallByHand, RecallByHand) {
  auto replayed = decode({9, 1, 2, 8});  // keeps 0 and 3: importance 5 of 10, the best two have 7
  const auto rows = measure(replayed, "recall", {{"detail", "head", ""}});
  EXPECT_NEAR(value(rows, "recall"), 0.5, kRounded);
  EXPECT_NEAR(value(rows, "recall_oracle"), 0.7, kRounded);
  EXPECT_NEAR(value(rows, "optimality_gap"), 0.2, kRounded);
  EXPECT_NEAR(value(rows, "eviction_loss"), 0.5, kRounded);
  ASSERT_TRUE(find(rows, "recall_head", {}, 0, 0, 0));
  EXPECT_NEAR(find(rows, "recall_head", {}, 0, 0, 0)->value, 0.5, kRounded);
}

TEST_F(RecallByHand, UnnormalisedLossIsInUnitsOfAttentionTimesNorm) {
  auto replayed = decode({9, 1, 2, 8});
  // Positions 1 and 2: (2 + 3)/15 · √2.
  EXPECT_NEAR(value(measure(replayed, "recall", {{"normalise", "none", ""}}), "eviction_loss"), std::sqrt(2.0) / 3,
              kRounded);
}

TEST_F(RecallByHand, PartsOfTheLossByHand) {
  auto replayed = decode({9, 1, 2, 8});  // keeps 0 and 3 (1 and 4 of 10); the best two are 2 and 3 (3 and 4)
  const auto rows = measure(replayed, "recall", {{"terms", "each", ""}, {"detail", "head", ""}});
  const std::map<std::string, double> expected = {{"eviction_loss", 0.5},
                                                  {"eviction_loss_oracle", 0.3},
                                                  {"eviction_loss_gap", 0.2},
                                                  {"missed_importance", 0.3},
                                                  {"false_positive_importance", 0.1},
                                                  {"hits", 1},
                                                  {"misses", 1},
                                                  {"false_positives", 1},
                                                  {"hit_share", 0.5}};
  for (const auto& [name, number] : expected) {
    EXPECT_NEAR(value(rows, name), number, kRounded) << name;
    // One layer with one head: each is all there is.
    const Measured* layer = find(rows, name + "_layer", {}, 0, 0);
    const Measured* head = find(rows, name + "_head", {}, 0, 0, 0);
    ASSERT_TRUE(layer && head) << name;
    EXPECT_EQ(layer->value, value(rows, name)) << name;
    EXPECT_EQ(head->value, value(rows, name)) << name;
  }
}

TEST_F(RecallByHand, PartsOfTheLossStandInEveryDetailOnlyOnRequest) {
  auto replayed = decode({9, 1, 2, 8});
  const auto rows = measure(replayed, "recall", {{"terms", "all", ""}, {"detail", "head", ""}});
  EXPECT_TRUE(find(rows, "hits", {}, 0));
  for (const char* name : {"recall_head", "eviction_loss_head"}) EXPECT_TRUE(find(rows, name, {}, 0, 0, 0)) << name;
  for (const char* name : {"hits_head", "eviction_loss_gap_head"}) EXPECT_FALSE(find(rows, name, {}, 0, 0, 0)) << name;
}

TEST_F(RecallByHand, PartsOfTheLossAreSkippedWithIt) {
  auto replayed = decode({0, 0, 0, 0});
  replayed.scorer = nullptr;
  EXPECT_EQ(skipped(measure(replayed, "recall", {{"terms", "all", ""}}), "hit_share"), "nothing is evicted");
}

TEST(FutureImportance, RefusesAFutureThatIsNoMultipleOfTheBlock) {
  EXPECT_THROW(make_metric("recall", {{"future", "10", ""}, {"block", "4", ""}}), UserError);
  EXPECT_THROW(make_metric("recall", {{"future", "8", ""}}), UserError);
  EXPECT_THROW(make_metric("eviction_curve", {{"future", "-1", ""}}), UserError);
  EXPECT_TRUE(make_metric("recall", {{"future", "8", ""}, {"block", "4", ""}}));
}

TEST_F(RecallByHand, KeepingByImportanceIsOptimal) {
  auto replayed = decode({1, 2, 3, 4});
  const auto rows = measure(replayed, "recall");
  EXPECT_EQ(value(rows, "recall"), value(rows, "recall_oracle"));
  EXPECT_EQ(value(rows, "optimality_gap"), 0);
}

TEST_F(RecallByHand, ProtectedEntriesCountUnlessLeftOut) {
  auto replayed = decode({9, 1, 8, 0}, {.sinks = 0, .recent = 1});
  // 3 is protected, 0 chosen: importance 4 + 1 of 10, the best two have 7.
  const auto all = measure(replayed, "recall");
  EXPECT_NEAR(value(all, "recall"), 0.5, kRounded);
  EXPECT_NEAR(value(all, "recall_oracle"), 0.7, kRounded);
  // Without 3, of 0, 1, 2 (importance 1, 2, 3) position 0 stays, 2 would be best.
  auto again = decode({9, 1, 8, 0}, {.sinks = 0, .recent = 1});
  const auto chosen = measure(again, "recall", {{"candidates", "unprotected", ""}});
  EXPECT_NEAR(value(chosen, "recall"), 1.0 / 6, kRounded);
  EXPECT_NEAR(value(chosen, "recall_oracle"), 3.0 / 6, kRounded);
}

TEST_F(RecallByHand, ABlockThatStraddlesTheEventDoesNotCount) {
  auto replayed = decode({9, 1, 2, 8});
  replayed.block = 5;  // of blocks [0, 5) and [5, 6) only the second begins after the event: the same proportions
  const auto rows = measure(replayed, "recall", {{"normalise", "none", ""}});
  EXPECT_NEAR(value(rows, "recall"), 0.5, kRounded);
  EXPECT_NEAR(value(rows, "eviction_loss"), std::sqrt(2.0) * 5 / 21, kRounded);
  auto none = decode({9, 1, 2, 8});
  none.block = 8;
  EXPECT_EQ(skipped(measure(none, "recall"), "recall"), "no query follows the events");
}

TEST_F(RecallByHand, FullIsSkipped) {
  auto replayed = decode({0, 0, 0, 0});
  replayed.scorer = nullptr;
  EXPECT_EQ(skipped(measure(replayed, "recall"), "recall"), "nothing is evicted");
  EXPECT_EQ(skipped(measure(replayed, "recall"), "eviction_loss"), "nothing is evicted");
}

TEST_F(RecallByHand, CurveByHand) {
  auto replayed = one_shot({9, 1, 2, 8});  // order 0, 3, 2, 1: 1, 5, 8, 10 of 10
  const auto rows = measure(replayed, "eviction_curve", {{"points", "4", ""}});
  const double policy[] = {1, 0.8, 0.5, 0.1, 0};
  const double oracle[] = {1, 0.9, 0.7, 0.4, 0};
  for (int i = 0; i <= 4; ++i) {
    EXPECT_NEAR(value(rows, "eviction_curve", i / 4.0), policy[i], kRounded) << i;
    EXPECT_NEAR(value(rows, "eviction_curve_oracle", i / 4.0), oracle[i], kRounded) << i;
  }
}

TEST_F(RecallByHand, CurveKeepsProtectedEntriesFirstWhateverTheirScores) {
  auto replayed = one_shot({std::nanf(""), 3, 7, std::nanf("")}, {.sinks = 1, .recent = 1});  // order 0, 3, 2, 1
  const auto rows = measure(replayed, "eviction_curve", {{"points", "4", ""}});
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

TEST_F(RecallByHand, LossCurveByHand) {
  // The policy gives up, of ten parts, 2 (position 1), then 3, 4 and 1; the oracle 1, 2, 3 and 4.
  auto replayed = one_shot({9, 1, 2, 8});
  const auto rows =
      measure(replayed, "eviction_curve", {{"points", "4", ""}, {"loss", "yes", ""}, {"detail", "head", ""}});
  const double policy[] = {0, 0.2, 0.5, 0.9, 1};
  const double oracle[] = {0, 0.1, 0.3, 0.6, 1};
  for (int i = 0; i <= 4; ++i) {
    EXPECT_NEAR(value(rows, "eviction_loss_curve", i / 4.0), policy[i], kRounded) << i;
    EXPECT_NEAR(value(rows, "eviction_loss_curve_oracle", i / 4.0), oracle[i], kRounded) << i;
    EXPECT_EQ(find(rows, "eviction_loss_curve_layer", i / 4.0, 0, 0)->value,
              value(rows, "eviction_loss_curve", i / 4.0));
    EXPECT_EQ(find(rows, "eviction_loss_curve_head", i / 4.0, 0, 0, 0)->value,
              value(rows, "eviction_loss_curve", i / 4.0));
  }
}

// In the policy's order 0, 3, 2, 1 the gains are 1, 4, 3, 2 of ten: the first three pool to 8/3, so that the hull at
// one and two entries lies at 22/3 and 14/3 where the curve has 9 and 5, and meets it at the vertices: 0, 3 and 4.
TEST_F(RecallByHand, HullOfTheLossCurveByHand) {
  auto replayed = one_shot({9, 1, 2, 8});
  const auto rows =
      measure(replayed, "eviction_curve", {{"points", "4", ""}, {"loss", "yes", ""}, {"detail", "head", ""}});
  const double hull[] = {0, 0.2, 14.0 / 30, 22.0 / 30, 1};
  for (int i = 0; i <= 4; ++i) {
    EXPECT_NEAR(value(rows, "eviction_loss_curve_hull", i / 4.0), hull[i], kRounded) << i;
    EXPECT_EQ(find(rows, "eviction_loss_curve_hull_head", i / 4.0, 0, 0, 0)->value,
              value(rows, "eviction_loss_curve_hull", i / 4.0));
  }
}

TEST_F(RecallByHand, CurveNeedsOneShotCompression) {
  auto replayed = decode({9, 1, 2, 8});
  EXPECT_EQ(skipped(measure(replayed, "eviction_curve"), "eviction_curve"), "a curve needs one-shot compression");
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
        if (view.keep.row(row)[slot]) event.kept.push_back(position);
      }
      events_.push_back(std::move(event));
    }
  }
  std::vector<Event> events_;
};

// Grouped heads (by group and future), two layers, two sequences, several events, against scalar doubles.
class GroupedRecall : public ::testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(GroupedRecall, MatchesTheReference) {
  const auto& [group, future] = GetParam();
  const auto backend = make_backend("cpu");
  const SourceInfo info = ref::tiny_info(2, 4, 2, 8);
  const int32_t lengths[] = {60, 41};
  const std::vector<ref::TinySample> tensors = {ref::random_sample(info, 60, 3), ref::random_sample(info, 41, 4)};
  WithOutput source(*backend, info, tensors);
  Events events;
  ReplayedCase replayed{source, *backend, {tiny_sample(60), tiny_sample(41, 1)}, decode_schedule(lengths, 16, 8)};
  replayed.block = 4;
  replayed.others = {&events};
  replayed.scorer = std::make_unique<ByPosition>(
      [](int layer, int row, int32_t position) { return static_cast<float>((position * 37 + row * 11 + layer) % 64); },
      Protection{.sinks = 1, .recent = 3});
  const auto rows = measure(replayed, "recall",
                            {{"group", group, ""},
                             {"candidates", "unprotected", ""},
                             {"terms", "each", ""},
                             {"detail", "layer", ""},
                             {"block", "4", ""},
                             {"future", std::to_string(future), ""}});

  for (int s = 0; s < 2; ++s) {
    double recall = 0, oracle = 0, hits = 0, count = 0;
    std::map<std::pair<int, int32_t>, std::vector<ref::Shares>> layers;  // by layer and event
    for (const auto& event : events.events_) {
      if (event.row / 2 != s) continue;
      const auto& sample_tensors = tensors[static_cast<size_t>(s)];
      const size_t layer = static_cast<size_t>(event.layer);
      std::vector<double> importance(static_cast<size_t>(event.seen), 0);
      for (int g = 0; g < 2; ++g) {
        const int head = event.row % 2 * 2 + g;
        const auto a =
            ref::probabilities(sample_tensors.queries[layer], sample_tensors.keys[layer], lengths[s], 4, 2, 8, head);
        const auto future_max = ref::future_max(a, event.seen, future);
        for (size_t j = 0; j < future_max.size(); ++j) {
          double square = 0;
          for (size_t d = 0; d < 8; ++d) {
            const double v = sample_tensors.values[layer][(j * 2 + static_cast<size_t>(event.row % 2)) * 8 + d];
            square += v * v;
          }
          const double part = future_max[j] * std::sqrt(square);
          importance[j] = group == "max" ? std::max(importance[j], part) : importance[j] + part;
        }
      }
      const auto shares = ref::shares(importance, event.candidates, event.kept);
      recall += shares.kept / shares.total;
      oracle += shares.best / shares.total;
      hits += shares.hits;
      ++count;
      layers[{event.layer, event.seen}].push_back(shares);
    }
    double loss = 0, missed = 0, false_positives = 0;
    std::map<int, double> loss_of;  // by layer
    for (const auto& [key, heads] : layers) {
      double total = 0;
      for (const auto& shares : heads) total += shares.total;
      for (const auto& shares : heads) {
        const double weight = 1 / total / static_cast<double>(layers.size());
        loss += (shares.total - shares.kept) * weight;
        missed += shares.missed * weight;
        false_positives += shares.false_positives * weight;
        loss_of[key.first] += (shares.total - shares.kept) * weight * 2;  // half of the (layer, event) pairs
      }
    }
    // Each head has the same number of events, so the mean of means is the mean.
    EXPECT_NEAR(value(rows, "recall", {}, s), recall / count, 1e-5);
    EXPECT_NEAR(value(rows, "recall_oracle", {}, s), oracle / count, 1e-5);
    EXPECT_GT(value(rows, "optimality_gap", {}, s), 0.01);
    EXPECT_NEAR(value(rows, "eviction_loss", {}, s), loss, 1e-5);
    EXPECT_NEAR(value(rows, "missed_importance", {}, s), missed, 1e-5);
    EXPECT_NEAR(value(rows, "false_positive_importance", {}, s), false_positives, 1e-5);
    EXPECT_NEAR(value(rows, "eviction_loss_gap", {}, s), missed - false_positives, 1e-5);
    EXPECT_NEAR(value(rows, "hits", {}, s), hits / count, 1e-9);
    for (int layer = 0; layer < 2; ++layer) {
      const Measured* row = find(rows, "eviction_loss_layer", {}, s, layer);
      ASSERT_TRUE(row);
      EXPECT_NEAR(row->value, loss_of[layer], 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Readings, GroupedRecall,
                         ::testing::Values(std::pair("mean", 0), std::pair("max", 0), std::pair("sum", 0),
                                           std::pair("mean", 4), std::pair("max", 12)));

// Two KV heads whose importance is in proportion to 1, 2, 3, 4 and to 4, 3, 2, 1 (future attention of query 4 over 1,
// 2, 3, 4, 5 and 4, 3, 2, 1, 5: 15 each), of which an allocation keeps 3 and 1.
TEST(UnevenAllocation, IsJudgedAtTheCountsThatItGave) {
  const auto backend = make_backend("cpu");
  const int32_t length = 5, context = 4, keep = 2;
  ref::TinySample sample{.queries = {{}}, .keys = {{}}, .values = {std::vector<float>(20, 1)}};
  for (const auto& [first, second] : {std::pair(1, 4), {2, 3}, {3, 2}, {4, 1}, {5, 5}}) {
    for (const int weight : {first, second}) {
      for (const float key : {std::log(static_cast<float>(weight)), 0.0F}) sample.keys[0].push_back(key);
      for (const float query : {std::sqrt(2.0F), 0.0F}) sample.queries[0].push_back(query);  // undoes 1/√head_dim
    }
  }
  sample.pre_rope_queries = sample.queries;
  WithOutput source(*backend, ref::tiny_info(1, 2, 2, 2), {sample});
  ReplayedCase replayed{source, *backend, {tiny_sample(5)}, one_shot_schedule({&length, 1}, {&context, 1}, {&keep, 1})};
  replayed.decode_time = false;
  replayed.scorer =
      std::make_unique<ByPosition>([](int, int, int32_t position) { return static_cast<float>(position); });
  replayed.recut = [](int row, int32_t slot) { return row == 0 ? slot != 3 : slot == 1; };
  const auto rows = measure(replayed, "recall", {{"terms", "each", ""}, {"detail", "head", ""}});
  const auto head = [&](const std::string& name, int number) {
    const Measured* row = find(rows, name + "_head", {}, 0, 0, number);
    return row ? row->value : std::nan("");
  };
  // Head 0, of 20, keeps 1, 2, 3 and loses 4, its best three lose 1; head 1 keeps 3 and loses 7, its best one loses 6.
  EXPECT_NEAR(head("eviction_loss", 0), 0.2, kRounded);
  EXPECT_NEAR(head("eviction_loss_oracle", 0), 0.05, kRounded);
  EXPECT_NEAR(head("eviction_loss", 1), 0.35, kRounded);
  EXPECT_NEAR(head("eviction_loss_oracle", 1), 0.3, kRounded);
  EXPECT_EQ(head("hits", 0), 2);
  EXPECT_EQ(head("misses", 0), 1);
  EXPECT_EQ(head("hits", 1), 0);
  EXPECT_EQ(head("misses", 1), 1);
  EXPECT_NEAR(value(rows, "eviction_loss"), 0.55, kRounded);
  EXPECT_NEAR(value(rows, "eviction_loss_gap"), 0.2, kRounded);
  EXPECT_EQ(value(rows, "hit_share"), 0.5);  // 2 of 4
}

// Two layers of two KV heads, 32 entries each in an order that has nothing to do with their importance.
std::vector<Measured> random_heads(const std::string& points) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = ref::tiny_info(2, 4, 2, 8);
  const int32_t length = 40, context = 32, keep = 16;
  WithOutput source(*backend, info, {ref::random_sample(info, length, 3)});
  ReplayedCase replayed{
      source, *backend, {tiny_sample(length)}, one_shot_schedule({&length, 1}, {&context, 1}, {&keep, 1})};
  replayed.decode_time = false;
  replayed.block = 4;
  replayed.scorer = std::make_unique<ByPosition>(
      [](int layer, int row, int32_t position) { return static_cast<float>((position * 37 + row * 11 + layer) % 64); });
  return measure(replayed, "eviction_curve", {{"points", points, ""}, {"loss", "yes", ""}, {"detail", "head", ""}});
}

// All that leaves is all there is: with everything removed a layer loses 1, whatever its magnitude.
TEST(LossCurve, OfALayerEndsAtOneAndIsSharedByItsHeads) {
  const auto rows = random_heads("4");
  for (const double x : {0.25, 0.5, 1.0}) {
    for (int layer = 0; layer < 2; ++layer) {
      for (const std::string name : {"eviction_loss_curve", "eviction_loss_curve_oracle"}) {
        const double both =
            find(rows, name + "_head", x, 0, layer, 0)->value + find(rows, name + "_head", x, 0, layer, 1)->value;
        EXPECT_NEAR(find(rows, name + "_layer", x, 0, layer)->value, both, 1e-12) << name;
        if (x < 1) continue;
        EXPECT_NEAR(both, 1, 1e-12) << name;
      }
    }
  }
}

// Every head, every point: convex, and equal to the curve at both ends.
TEST(LossCurve, HullIsConvexAndLiesBetweenTheOracleAndThePolicy) {
  const auto rows = random_heads("32");
  int below = 0;
  for (int row = 0; row < 4; ++row) {
    const auto at = [&](const std::string& name, int i) {
      return find(rows, name + "_head", i / 32.0, 0, row / 2, row % 2)->value;
    };
    for (int i = 0; i <= 32; ++i) {
      const double hull = at("eviction_loss_curve_hull", i);
      EXPECT_LE(hull, at("eviction_loss_curve", i));
      EXPECT_GE(hull, at("eviction_loss_curve_oracle", i));
      below += hull < at("eviction_loss_curve", i) - 1e-3 ? 1 : 0;
      if (i == 0 || i == 32) {
        EXPECT_NEAR(hull, at("eviction_loss_curve", i), 1e-12);
      } else {
        EXPECT_LE(2 * hull, at("eviction_loss_curve_hull", i - 1) + at("eviction_loss_curve_hull", i + 1) + 1e-12);
      }
    }
  }
  EXPECT_GT(below, 20);  // or nothing is pooled
}

}  // namespace
}  // namespace kv::test
