#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/source/model_source.h"
#include "tests/ref/naive_metrics.h"
#include "tests/support/paths.h"
#include "tests/support/replayed.h"

// Metrics on attention: cosine, local_error, dilution, survival.

namespace kv::test {
namespace {

// Keeps positions 0 and 3 of the first four.
float keep_0_and_3(int, int, int32_t position) { return position == 0 || position == 3 ? 1.0f : 0.0f; }

// One head that attends in proportion to 1, 2, 3, 4, 5, 6; one event after four tokens keeps two.
class AttentionMetricsByHand : public ::testing::Test {
 protected:
  ReplayedCase cut() {
    ReplayedCase replayed = full();
    replayed.scorer = std::make_unique<ByPosition>(keep_0_and_3);
    return replayed;
  }
  ReplayedCase full() {
    const int32_t length = 6;
    return {source_, *backend_, {sample_}, decode_schedule({&length, 1}, 2, 2)};
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  ref::TinySource source_{*backend_, ref::tiny_info(1, 1, 1, 2), {ref::weighted_sample({{1, 2, 3, 4, 5, 6}})}};
  Sample sample_ = tiny_sample(6);
};

TEST_F(AttentionMetricsByHand, EvictedMassAndBoundByHand) {
  auto replayed = cut();
  const auto rows = measure(replayed, "local_error", {{"stride", "1", ""}});
  // Queries 4 and 5 of the full cache give 5/15 and 5/21 to the evicted positions 1 and 2; ‖v‖ = √2.
  const double evicted = (5.0 / 15 + 5.0 / 21) / 2;
  EXPECT_NEAR(value(rows, "evicted_mass"), evicted, kRounded);
  EXPECT_NEAR(value(rows, "error_bound"), 2 * std::sqrt(2.0) * evicted, 2 * kRounded);
  // All values are equal: leaving some out changes nothing.
  EXPECT_NEAR(value(rows, "output_error"), 0, kRounded);
  EXPECT_NEAR(value(rows, "cosine_local"), 1, kRounded);
  EXPECT_EQ(value(rows, "bound_violations"), 0);
}

TEST_F(AttentionMetricsByHand, LocalErrorMeasuresEveryStridethQueryFromTheEventOn) {
  auto replayed = cut();
  EXPECT_NEAR(value(measure(replayed, "local_error", {{"stride", "2", ""}}), "evicted_mass"), 5.0 / 15, kRounded);
}

TEST_F(AttentionMetricsByHand, FullEvictsNoMassAndHasCosineOne) {
  auto replayed = full();
  const auto local = measure(replayed, "local_error", {{"stride", "1", ""}});
  EXPECT_EQ(value(local, "evicted_mass"), 0);
  EXPECT_EQ(value(local, "output_error"), 0);
  EXPECT_NEAR(value(local, "cosine_local"), 1, kRounded);
  EXPECT_EQ(value(local, "bound_violations"), 0);
  auto again = full();
  EXPECT_NEAR(value(measure(again, "cosine"), "cosine"), 1, kRounded);
}

TEST_F(AttentionMetricsByHand, DilutionByHand) {
  sample_.links = {{.query_begin = 4, .query_end = 6, .sources = {{0, 2}, {1, 2}}}};
  auto all = full();
  const auto before = measure(all, "dilution");
  // Useful positions 0 and 1: 3/15 and 3/21 of the attention.
  EXPECT_NEAR(value(before, "useful_mass"), (3.0 / 15 + 3.0 / 21) / 2, kRounded);
  EXPECT_NEAR(value(before, "dilution"), 1 - (3.0 / 15 + 3.0 / 21) / 2, kRounded);
  // Residents 0, 3, 4 and then 5: position 1 is gone.
  auto replayed = cut();
  const auto after = measure(replayed, "dilution");
  EXPECT_NEAR(value(after, "useful_mass"), (1.0 / 10 + 1.0 / 16) / 2, kRounded);
  EXPECT_NEAR(value(after, "dilution_tail"), 1 - (1.0 / 10 + 1.0 / 16) / 2, kRounded);
}

TEST_F(AttentionMetricsByHand, DilutionTailLeavesOutEarlierQueries) {
  sample_.links = {{.query_begin = 1, .query_end = 2, .sources = {{0, 1}}},
                   {.query_begin = 4, .query_end = 5, .sources = {{3, 4}}}};
  auto replayed = full();
  const auto rows = measure(replayed, "dilution");
  EXPECT_NEAR(value(rows, "useful_mass"), (1.0 / 3 + 4.0 / 15) / 2, kRounded);
  EXPECT_NEAR(value(rows, "useful_mass_tail"), 4.0 / 15, kRounded);
}

TEST_F(AttentionMetricsByHand, DilutionSaysWhenNothingIsKnownToBeUseful) {
  auto replayed = full();
  EXPECT_EQ(skipped(measure(replayed, "dilution"), "dilution"), "the task does not say which tokens are useful");
}

// Useful to query t, 2 and on, are the two keys of largest weight, t and t − 1. Of the residents 0, 3, 4 and 5 after
// the event the useful ones keep all of their logits: less is left beside them, and dilution falls (003 Cor. 3.2).
TEST_F(AttentionMetricsByHand, DilutionByTheFullCachesTopKeysFallsWhereOthersAreEvicted) {
  const std::vector<GivenParam> options = {{"useful", "top_k", ""}, {"top_k", "2", ""}, {"stride", "1", ""}};
  auto all = full();
  const auto before = measure(all, "dilution", options);
  EXPECT_NEAR(value(before, "useful_mass_top_k"), (5.0 / 6 + 7.0 / 10 + 9.0 / 15 + 11.0 / 21) / 4, kRounded);
  auto replayed = cut();
  const auto after = measure(replayed, "dilution", options);
  EXPECT_NEAR(value(after, "useful_mass_top_k_tail"), (9.0 / 10 + 11.0 / 16) / 2, kRounded);
  EXPECT_NEAR(value(after, "dilution_top_k"), 1 - (5.0 / 6 + 7.0 / 10 + 9.0 / 10 + 11.0 / 16) / 4, kRounded);
  EXPECT_EQ(find(after, "dilution"), nullptr);
}

TEST_F(AttentionMetricsByHand, BothDilutionsAreThoseOfEitherAlone) {
  sample_.links = {{.query_begin = 4, .query_end = 6, .sources = {{0, 2}}}};
  const auto by = [&](const std::string& useful) {
    auto replayed = cut();
    std::vector<GivenParam> options = {{"useful", useful, ""}};
    if (useful != "task") options.insert(options.end(), {{"top_k", "2", ""}, {"stride", "1", ""}});
    return measure(replayed, "dilution", options);
  };
  const auto task = by("task"), top = by("top_k"), both = by("both");
  for (const char* name : {"dilution", "useful_mass_tail"}) EXPECT_EQ(value(both, name), value(task, name));
  for (const char* name : {"dilution_top_k", "useful_mass_top_k_tail"}) EXPECT_EQ(value(both, name), value(top, name));
}

// Position 3, useful to query 4, is gone: of the residents 0, 1, 4 and then 5 it has none of the mass.
TEST_F(AttentionMetricsByHand, AnEvictedTopKeyLosesItsMass) {
  ReplayedCase replayed = full();
  replayed.scorer =
      std::make_unique<ByPosition>([](int, int, int32_t position) { return -static_cast<float>(position); });
  const auto rows = measure(replayed, "dilution", {{"useful", "top_k", ""}, {"top_k", "2", ""}, {"stride", "4", ""}});
  EXPECT_NEAR(value(rows, "dilution_top_k"), 1 - 5.0 / 8, kRounded);
}

TEST_F(AttentionMetricsByHand, DilutionByTopKeysSaysWhatItCannotMeasure) {
  auto replayed = full();
  EXPECT_EQ(skipped(measure(replayed, "dilution", {{"useful", "top_k", ""}}), "dilution_top_k"),
            "no measured query sees more than top_k keys");
  EXPECT_THROW(make_metric("dilution", {{"top_k", "2", ""}}), UserError);
  EXPECT_THROW(make_metric("dilution", {{"useful", "top_k", ""}, {"stride", "0", ""}}), UserError);
}

TEST_F(AttentionMetricsByHand, SurvivalIsForTheFullCacheOnly) {
  auto replayed = cut();
  EXPECT_EQ(skipped(measure(replayed, "survival"), "survival_mass"), "only the full cache shows survival");
}

TEST(SurvivalMetric, FiveTokensByHand) {
  const auto backend = make_backend("cpu");
  ref::TinySource source(*backend, ref::tiny_info(1, 1, 1, 2), {ref::weighted_sample({{1, 3, 2, 2, 1}})});
  const int32_t length = 5;
  ReplayedCase replayed{source, *backend, {tiny_sample(5)}, full_schedule({&length, 1}, 2)};
  const auto rows = measure(replayed, "survival", {{"top_k", "1", ""}, {"mass", "0.6", ""}, {"delta", "2", ""}});
  // Top 1: from query 1 on always key 1, so life_1 = 3, all others 0.
  EXPECT_EQ(value(rows, "survival_top_k", 1), 1.0 / 4);
  EXPECT_EQ(value(rows, "survival_top_k", 2), 1.0 / 3);
  EXPECT_EQ(value(rows, "survival_top_k", 4), 0);
  // Mass 0.6: {0}, {1} (3/4), {1, 2} (5/6), {1, 3} (5/8: the newer of the equal ones), {1, 3, 2} (7/9).
  // Lives 0, 3, 2, 1, 0.
  EXPECT_EQ(value(rows, "survival_mass", 1), 3.0 / 4);
  EXPECT_EQ(value(rows, "survival_mass", 2), 2.0 / 3);
  EXPECT_EQ(value(rows, "survival_mass", 4), 0);
  const Measured* head = find(rows, "survival_mass_head", 2, 0, 0, 0);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->value, 2.0 / 3);
}

// Tokens whose lives follow P(life >= Δ) = β^Δ: token i is what every query attends to until it dies, and no later one.
// Key i is the i-th unit vector, so that a query says of every key whether it attends to it. Lives are the quantiles of
// a van der Corput sequence: of any n tokens in a row the share that reaches Δ is β^Δ but for 2 (log2(n) + 1) / n.
ref::TinySample geometric_lives(int tokens, double beta) {
  const auto corput = [](unsigned i) {
    double u = 0;
    for (double digit = 0.5; i > 0; i /= 2, digit /= 2) u += digit * (i % 2);
    return u;
  };
  const auto n = static_cast<size_t>(tokens);
  ref::TinySample sample{.queries = {std::vector<float>(n * n, 0)},
                         .keys = {std::vector<float>(n * n, 0)},
                         .values = {std::vector<float>(n * n, 1)}};
  for (size_t i = 0; i < n; ++i) {
    const auto life = static_cast<size_t>(std::log(1 - corput(static_cast<unsigned>(i))) / std::log(beta));
    sample.keys[0][i * n + i] = 1;
    // 40 after the scale of 1 / √n: the dead have no part of the mass that f32 could see.
    for (size_t t = i; t < n && t <= i + life; ++t)
      sample.queries[0][t * n + i] = 40 * std::sqrt(static_cast<float>(tokens));
  }
  sample.pre_rope_queries = sample.queries;
  return sample;
}

TEST(SurvivalMetric, AGeometricProcessHasItsSquareAtTwiceTheDistance) {
  constexpr int kTokens = 256;
  constexpr double kBeta = 0.97;
  const auto backend = make_backend("cpu");
  ref::TinySource source(*backend, ref::tiny_info(1, 1, 1, kTokens), {geometric_lives(kTokens, kBeta)});
  const int32_t length = kTokens;
  ReplayedCase replayed{source, *backend, {tiny_sample(kTokens)}, full_schedule({&length, 1}, 64)};
  const auto rows =
      measure(replayed, "survival", {{"criterion", "mass", ""}, {"mass", "0.999", ""}, {"law", "geometric", ""}});
  const auto bound = [](int delta) {
    const double born = kTokens - delta;
    return 2 * (std::log2(born) + 1) / born;
  };
  for (const int delta : {1, 2, 4, 8, 16, 32, 64}) {
    SCOPED_TRACE(delta);
    const double alive = value(rows, "survival_mass", delta), later = value(rows, "survival_mass", 2 * delta);
    EXPECT_NEAR(alive, std::pow(kBeta, delta), bound(delta));
    EXPECT_NEAR(value(rows, "survival_mass_excess", delta), later - alive * alive, 1e-12);
    EXPECT_NEAR(later, alive * alive, bound(2 * delta) + 2 * bound(delta));
  }
  EXPECT_EQ(find(rows, "survival_mass_excess", 128), nullptr);  // no token can live for 256
}

// Key 1 is what the fixed weights always put first, key 2 second: it outlives any geometric law.
TEST(SurvivalMetric, ASinkHasMoreThanItsSquare) {
  const auto backend = make_backend("cpu");
  ref::TinySource source(*backend, ref::tiny_info(1, 1, 1, 2), {ref::weighted_sample({{1, 3, 2, 2, 1}})});
  const int32_t length = 5;
  ReplayedCase replayed{source, *backend, {tiny_sample(5)}, full_schedule({&length, 1}, 2)};
  const auto rows = measure(replayed, "survival", {{"top_k", "1", ""}, {"law", "geometric", ""}});
  EXPECT_EQ(value(rows, "survival_top_k_excess", 1), 1.0 / 3 - 1.0 / 16);
  EXPECT_EQ(find(rows, "survival_top_k_head_excess", 1), nullptr);
}

// Random attention, two sequences of different length, grouped heads.
class AttentionMetricsAtRandom : public ::testing::Test {
 protected:
  static constexpr int kTokens = 60;
  ReplayedCase make_case(std::unique_ptr<Scorer> scorer) {
    const int32_t lengths[] = {kTokens, 41};
    ReplayedCase replayed{
        source_, *backend_, {tiny_sample(kTokens), tiny_sample(41, 1)}, decode_schedule(lengths, 16, 8)};
    replayed.scorer = std::move(scorer);
    return replayed;
  }
  // A ranking that differs between heads, layers and sequences.
  static std::unique_ptr<Scorer> scattered() {
    return std::make_unique<ByPosition>(
        [](int layer, int row, int32_t position) {
          return static_cast<float>((position * 37 + row * 11 + layer * 5) % 64);
        },
        Protection{.sinks = 1, .recent = 3});
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  SourceInfo info_ = ref::tiny_info(2, 4, 2, 8);
  std::vector<ref::TinySample> tensors_ = {ref::random_sample(info_, kTokens, 1), ref::random_sample(info_, 41, 2)};
  ref::TinySource source_{*backend_, info_, tensors_};
};

// A trace is not fed back, so both readings of the cosine see the same queries.
TEST_F(AttentionMetricsAtRandom, EndToEndAndLocalCosineAgreeOnATrace) {
  auto first = make_case(scattered());
  auto second = make_case(scattered());
  const auto end_to_end = measure(first, "cosine", {{"detail", "head", ""}});
  const auto local = measure(second, "local_error", {{"stride", "1", ""}});
  for (int s = 0; s < 2; ++s) {
    EXPECT_NEAR(value(end_to_end, "cosine", {}, s), value(local, "cosine_local", {}, s), 1e-5);
    EXPECT_LT(value(local, "cosine_local", {}, s), 0.99);
    EXPECT_GT(value(local, "output_error", {}, s), 0.01);
    EXPECT_LE(value(local, "output_error", {}, s), value(local, "error_bound", {}, s));
    EXPECT_EQ(value(local, "bound_violations", {}, s), 0);
  }
  double heads = 0;
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 4; ++head) heads += find(end_to_end, "cosine_head", {}, 0, layer, head)->value;
  }
  EXPECT_NEAR(heads / 8, value(end_to_end, "cosine"), 1e-12);
}

TEST_F(AttentionMetricsAtRandom, SurvivalMatchesTheReference) {
  auto full = make_case(nullptr);
  const auto rows = measure(full, "survival", {{"top_k", "3", ""}, {"mass", "0.7", ""}, {"delta", "4", ""}});
  for (int s = 0; s < 2; ++s) {
    const int tokens = s == 0 ? kTokens : 41;
    for (const int delta : {1, 4, 32}) {
      double top_k = 0;
      double mass = 0;
      for (size_t layer = 0; layer < 2; ++layer) {
        for (int head = 0; head < 4; ++head) {
          const auto& tensors = tensors_[static_cast<size_t>(s)];
          const auto a = ref::probabilities(tensors.queries[layer], tensors.keys[layer], tokens, 4, 2, 8, head);
          top_k += ref::survival(a, 3, 0, delta) / 8;
          mass += ref::survival(a, 0, 0.7, delta) / 8;
        }
      }
      EXPECT_NEAR(value(rows, "survival_top_k", delta, s), top_k, 1e-12) << s << " " << delta;
      EXPECT_NEAR(value(rows, "survival_mass", delta, s), mass, 1e-12) << s << " " << delta;
    }
  }
}

// Of 60 tokens 6, of 41 four: what top_k says of each text alone.
TEST_F(AttentionMetricsAtRandom, AShareOfTheTextSelectsByItsLength) {
  auto shared = make_case(nullptr), six = make_case(nullptr), four = make_case(nullptr);
  const auto by_share = measure(shared, "survival", {{"top_share", "0.1", ""}, {"criterion", "top_k", ""}});
  const auto by_six = measure(six, "survival", {{"top_k", "6", ""}});
  const auto by_four = measure(four, "survival", {{"top_k", "4", ""}});
  for (const int delta : {1, 4, 32}) {
    EXPECT_EQ(value(by_share, "survival_top_share", delta, 0), value(by_six, "survival_top_k", delta, 0));
    EXPECT_EQ(value(by_share, "survival_top_share", delta, 1), value(by_four, "survival_top_k", delta, 1));
  }
  EXPECT_NE(value(by_six, "survival_top_k", 4, 1), value(by_four, "survival_top_k", 4, 1));
}

TEST(SurvivalMetric, RefusesAShareThatSelectsNothing) {
  EXPECT_THROW(make_metric("survival", {{"top_share", "0.1", ""}, {"criterion", "mass", ""}}), UserError);
  EXPECT_THROW(make_metric("survival", {{"top_share", "1.5", ""}}), UserError);
}

// Each query head by its own set: what the full cache's probabilities say, and of two sequences at once.
TEST_F(AttentionMetricsAtRandom, DilutionByTopKeysMatchesTheReference) {
  auto full = make_case(nullptr);
  const auto rows = measure(full, "dilution",
                            {{"useful", "top_k", ""}, {"top_k", "5", ""}, {"stride", "3", ""}, {"detail", "head", ""}});
  for (int s = 0; s < 2; ++s) {
    const int tokens = s == 0 ? kTokens : 41;
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 4; ++head) {
        const auto l = static_cast<size_t>(layer);
        const auto& tensors = tensors_[static_cast<size_t>(s)];
        const auto a = ref::probabilities(tensors.queries[l], tensors.keys[l], tokens, 4, 2, 8, head);
        double useful = 0;
        int queries = 0;
        for (int t = 6; t < tokens; t += 3, ++queries) {
          auto row = a[static_cast<size_t>(t)];
          std::sort(row.begin(), row.end(), std::greater<>());
          useful += std::accumulate(row.begin(), row.begin() + 5, 0.0);
        }
        EXPECT_NEAR(find(rows, "dilution_top_k_head", {}, s, layer, head)->value, 1 - useful / queries, 1e-5);
      }
    }
  }
}

TEST_F(AttentionMetricsAtRandom, DilutionStaysBetweenZeroAndOne) {
  auto replayed = make_case(scattered());
  replayed.samples[0].links = {{.query_begin = 20, .query_end = 60, .sources = {{0, 20}}}};
  replayed.samples[1].links = {{.query_begin = 5, .query_end = 41, .sources = {{40, 41}}}};
  const auto rows = measure(replayed, "dilution", {{"detail", "head", ""}});
  EXPECT_GT(value(rows, "dilution", {}, 0), 0);
  EXPECT_LT(value(rows, "dilution", {}, 0), 1);
  // Only the last query sees position 40.
  EXPECT_GT(value(rows, "dilution", {}, 1), 35.0 / 36);
  EXPECT_LE(value(rows, "dilution", {}, 1), 1);
}

TEST(CosineMetric, OfFullIsOneOnAModel) {
  const auto backend = make_backend("cpu");
  ModelSource source(*backend, load_model(ref::source_path("tests/data/llama")));
  const auto file = SafetensorsFile::open(ref::source_path("tests/data/llama/expected.safetensors"));
  Sample sample;
  sample.ids = file.read_i32(file.require("input_ids"));
  sample.ids.resize(80);
  const int32_t length = 80;
  ReplayedCase full{source, *backend, {sample}, decode_schedule({&length, 1}, 32, 16)};
  EXPECT_NEAR(value(measure(full, "cosine"), "cosine"), 1, 1e-5);
  ReplayedCase cut{source, *backend, {sample}, decode_schedule({&length, 1}, 32, 16)};
  cut.scorer = std::make_unique<ByPosition>([](int, int, int32_t position) { return static_cast<float>(-position); });
  const double cosine = value(measure(cut, "cosine"), "cosine");
  EXPECT_LT(cosine, 0.999);
  EXPECT_GT(cosine, 0);
}

}  // namespace
}  // namespace kv::test
