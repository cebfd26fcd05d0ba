#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"snapkv", {0x66cfa1797ad4cad3, 0x47fd86e35885dd27}};

using Kept = std::vector<std::vector<int32_t>>;

Options options(const std::string& mode, const std::string& window, const std::string& kernel) {
  return {{"mode", mode, ""}, {"window", window, ""}, {"kernel", kernel, ""}};
}

// Weights 4 2 8 1 | 1, window 1: the newest query (token 4) gives the older entries 4/15 2/15 8/15 1/15.
// B = 3 keeps two of them: 0 and 2.
TEST(SnapKV, KeepsWhatTheWindowAttendsTo) {
  EXPECT_EQ(kept_by("snapkv", options("decode", "1", "1"), {{4, 2, 8, 1, 1, 1}}, 3, 2), (Kept{{0, 2, 4}}));
}

// Max-pool 3 makes 4 8 8 8 (/15): 1, 2 and 3 tie for two places; before pooling 2 has 8, 1 has 2, 3 has 1.
TEST(SnapKV, BreaksPlateausByTheAttentionBeforePooling) {
  EXPECT_EQ(kept_by("snapkv", options("decode", "1", "3"), {{4, 2, 8, 1, 1, 1}}, 3, 2), (Kept{{1, 2, 4}}));
}

// torch.topk, which the released codes call, leaves open which of equal scores it takes. Whatever it takes, the kept
// set is ours but for entries that tie with the last one kept; of those ours are the newest with the most attention.
TEST(SnapKV, KeepsTheTopScoresUpToTies) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(2, 4, 2, 8);
  TinySource source(*backend, info, {random_sample(info, 90, 5)});
  int tied = 0;
  for (const Event& event : run_policy(source, *backend, decode_run("snapkv", {}, {0}, {90}, 24, 12)).events) {
    const size_t candidates = event.resident.size() - 8;
    std::vector<float> ranked(event.scores.begin(), event.scores.begin() + static_cast<int64_t>(candidates));
    std::sort(ranked.rbegin(), ranked.rend());
    const float cut = ranked[event.kept.size() - 8 - 1];
    int above = 0, at_cut = 0, kept_at_cut = 0;
    for (size_t j = 0; j < candidates; ++j) {
      const bool kept = std::binary_search(event.kept.begin(), event.kept.end(), event.resident[j]);
      EXPECT_TRUE(kept || event.scores[j] <= cut) << "position " << event.resident[j];
      EXPECT_TRUE(!kept || event.scores[j] >= cut) << "position " << event.resident[j];
      above += event.scores[j] > cut;
      at_cut += event.scores[j] == cut;
      kept_at_cut += kept && event.scores[j] == cut;
    }
    EXPECT_EQ(above + kept_at_cut, 16);
    tied += at_cut > kept_at_cut;
  }
  EXPECT_GT(tied, 0);  // the plateaus of max-pooling reach over the cut
}

// Heads (6 1 4 1 | 1) and (1 1 4 1 | 1), one older entry stays.
//   decode:  logits maximised first, weights 6 1 4 1: entry 0.
//   kvpress: means of probabilities over all five entries, (6/13 + 1/8)/2 = 0.293 against (4/13 + 4/8)/2 = 0.404:
//   entry 2.
TEST(SnapKV, DecodeMaximisesLogitsWhereKvpressAveragesProbabilities) {
  const std::vector<std::vector<float>> weights = {{6, 1, 4, 1, 1, 1}, {1, 1, 4, 1, 1, 1}};
  EXPECT_EQ(kept_once("snapkv", options("decode", "1", "1"), weights, 2), (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(kept_once("snapkv", options("kvpress", "1", "1"), weights, 2), (std::vector<int32_t>{2, 4}));
  EXPECT_EQ(kept_once("snapkv", options("original", "1", "1"), weights, 2), (std::vector<int32_t>{2, 4}));
}

// Heads (6 1 5 1 | 1) and (1 5 3 1 | 6), one older entry stays.
//   decode:  weights 6 5 5 1, then one softmax: entry 0.
//   wg-kv:   shares of the older entries alone, 6 1 5 1 (/13) and 1 5 3 1 (/10), then the larger: .46 .5 .38 .1:
//   entry 1.
//            Of all five entries entry 0 would have 6/14 and entry 1 only 5/16.
//   kvpress: means of the shares of all five: 6/14 + 1/16 = .49, 1/14 + 5/16 = .38, 5/14 + 3/16 = .54: entry 2.
TEST(SnapKV, WgKvMaximisesProbabilitiesWhereDecodeMaximisesLogits) {
  const std::vector<std::vector<float>> weights = {{6, 1, 5, 1, 1, 1}, {1, 5, 3, 1, 6, 1}};
  EXPECT_EQ(kept_once("snapkv", options("decode", "1", "1"), weights, 2), (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(kept_once("snapkv", options("wg-kv", "1", "1"), weights, 2), (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(kept_once("snapkv", options("kvpress", "1", "1"), weights, 2), (std::vector<int32_t>{2, 4}));
}

// As decode: max-pool 3 makes 4 8 8 8 (/15), and attention before pooling decides.
TEST(SnapKV, WgKvBreaksPlateausByTheAttentionBeforePooling) {
  EXPECT_EQ(kept_by("snapkv", options("wg-kv", "1", "3"), {{4, 2, 8, 1, 1, 1}}, 3, 2), (Kept{{1, 2, 4}}));
}

// Weights 9 1 2 8: averages with zeros beyond the edges are 10 12 11 10 (/3), so the middle stays; dividing by the
// entries really there would give 5 4 3.7 5 and keep the edges.
TEST(SnapKV, AveragePoolingIsBiasedDownAtTheEdges) {
  EXPECT_EQ(kept_once("snapkv", options("kvpress", "1", "3"), {{9, 1, 2, 8, 1, 1}}, 3),
            (std::vector<int32_t>{1, 2, 4}));
}

// Weights 4 2 8 9 1 | 1, window 1, B = 4: the two sinks, the newest, and of 2, 3 and 4 the best.
TEST(SnapKV, KeepsSinksWhenAsked) {
  Options with_sinks = options("decode", "1", "1");
  with_sinks.push_back({"sinks", "2", ""});
  EXPECT_EQ(kept_by("snapkv", with_sinks, {{4, 2, 8, 9, 1, 1, 1}}, 4, 2), (Kept{{0, 1, 3, 5}}));
}

KV_OVER_BACKENDS(Runs, SnapKVOn);

TEST_P(SnapKVOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agrees(*backend, "snapkv", {}, naive_snapkv_decode(8, 7, NaivePool::kMax));
  expect_agrees(*backend, "snapkv", {{"pool", "average", ""}, {"kernel", "3", ""}},
                naive_snapkv_decode(8, 3, NaivePool::kAverage));
  expect_agrees(*backend, "snapkv", options("decode", "5", "9"), naive_snapkv_decode(5, 9, NaivePool::kMax),
                {.interval = 0});
  expect_agrees(*backend, "snapkv", {{"mode", "kvpress", ""}}, naive_snapkv_per_head(32, 7, NaivePool::kAverage),
                {.tokens = 100, .budget = 40});
  expect_agrees(*backend, "snapkv", {{"mode", "kvpress", ""}, {"window", "6", ""}},
                naive_snapkv_per_head(6, 7, NaivePool::kAverage), {.interval = 0});
  expect_agrees(*backend, "snapkv", {{"mode", "original", ""}}, naive_snapkv_per_head(32, 5, NaivePool::kAverage),
                {.tokens = 100, .budget = 40, .interval = 0});
  expect_agrees(*backend, "snapkv", {{"mode", "original", ""}, {"pool", "max", ""}},
                naive_snapkv_per_head(32, 5, NaivePool::kMax), {.tokens = 100, .budget = 40, .interval = 0});
  expect_agrees(*backend, "snapkv", {{"mode", "wg-kv", ""}}, naive_snapkv_wg_kv(256, 5, NaivePool::kMax),
                {.tokens = 310, .budget = 270});
  expect_agrees(*backend, "snapkv", {{"mode", "wg-kv", ""}, {"window", "6", ""}},
                naive_snapkv_wg_kv(6, 5, NaivePool::kMax));
  expect_agrees(*backend, "snapkv", {{"mode", "wg-kv", ""}, {"window", "17", ""}, {"pool", "average", ""}},
                naive_snapkv_wg_kv(17, 5, NaivePool::kAverage), {.interval = 0});
}

// Of the window alone 0, 2 and 4 stay; with the two newest protected 3 and 4, and 2, which has the most attention.
TEST(SnapKV, ProtectsMoreThanItsWindowWhereAsked) {
  for (const char* recent : {"2", "-1"}) {
    Options more = options("decode", "1", "1");
    more.push_back({"recent", recent, ""});
    EXPECT_EQ(kept_by("snapkv", more, {{4, 2, 8, 1, 1, 1}}, 3, 2), (Kept{{2, 3, 4}})) << recent;
  }
  const auto newest = [](const char* recent, int interval) {
    return make_policy("snapkv", {{"recent", recent, ""}}).scorer->protects(64, interval).recent;
  };
  EXPECT_EQ(newest("0", 16), 8);
  EXPECT_EQ(newest("4", 16), 8);
  EXPECT_EQ(newest("32", 16), 32);
  EXPECT_EQ(newest("-1", 16), 16);
  EXPECT_EQ(newest("-1", 0), 8);
}

TEST(SnapKV, RefusesABudgetOfTheWindow) {
  expect_refused("snapkv", {}, 8, 4, "snapkv: budget 8 does not exceed the window 8");
  expect_refused("snapkv", {{"mode", "kvpress", ""}}, 32, 0, "snapkv: budget 32 does not exceed the window 32");
  expect_refused("snapkv", {{"mode", "wg-kv", ""}}, 256, 0, "snapkv: budget 256 does not exceed the window 256");
  expect_refused("snapkv", {{"sinks", "4", ""}}, 12, 4, "snapkv: budget 12 does not exceed the window 8 and 4 sinks");
  expect_refused("snapkv", {{"recent", "-1", ""}}, 16, 16,
                 "snapkv: budget 16 does not exceed the 16 newest entries protected");
}

TEST(SnapKV, RefusesAnEvenKernel) {
  expect_bad_option("snapkv", {{"kernel", "4", ""}}, "snapkv: kernel = 4: expected a positive odd number");
  expect_bad_option("snapkv", {{"window", "0", ""}}, "snapkv: window = 0: expected at least 1");
  expect_bad_option("snapkv", {{"sinks", "-1", ""}}, "snapkv: sinks = -1: expected at least 0");
  expect_bad_option("snapkv", {{"kernel", "16777217", ""}}, "snapkv: kernel = 16777217: expected at most 16777216");
}

}  // namespace
}  // namespace kv::ref
