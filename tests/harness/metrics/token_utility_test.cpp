#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "harness/metrics/metric.h"
#include "kernels/error.h"
#include "tests/support/replayed.h"

namespace kv::test {
namespace {

constexpr const char* kEvery[] = {"utility_top_share", "utility_overlap",    "utility_transient_share", "utility_used",
                                  "utility_ignored",   "utility_received_u", "utility_received_v"};

// Twelve tokens in blocks of two, a window of two, one sink: tokens 1 to 4 are measured, since six queries or more are
// far from them: those of blocks 2 to 5 from 1 and 2, of blocks 3 to 5 from 3 and 4. Block sums written by hand:
//              near, by block                               far, a block               m
//   head 0     1: 1, 1 (blocks 0, 1)   2: 0.5 (1)           1: 1   2: 0.25             1: 0.5    2: 0.125
//              3: 0.25, 0.25 (1, 2)    4: 0.25 (2)
//   head 1     2: 1.5 (1)              4: 0.5 (2)           1: 0.125   4: 1.5          1: 0.0625 4: 0.75
//   head 2     3: 1 (2)                                     1: 0.5                     1: 0.25
// and in all of them 0.25 on the sink, and from the last block 0.5 on token 6, which is too young.
class TokenUtilityByHand : public ::testing::Test {
 protected:
  static constexpr size_t kBlocks = 6, kTokens = 12;

  TokenUtilityByHand() {
    baseline_.sequences = 1;
    baseline_.max_tokens = kTokens;
    baseline_.blocks = kBlocks;
    baseline_.lengths = {kTokens};
    baseline_.has = {.statistics_block = 2, .block_sums = true};
    info_.layer_numbers = {7};
    for (size_t head = 0; head < 3; ++head) {
      put(head, 0, 5, 0, 0.25);
      put(head, 5, 5, 6, 0.5);
    }
    put(0, 0, 5, 1, 1);
    put(0, 1, 1, 2, 0.5);
    put(0, 2, 5, 2, 0.25);
    put(0, 1, 2, 3, 0.25);
    put(0, 2, 2, 4, 0.25);
    put(1, 2, 5, 1, 0.125);
    put(1, 1, 1, 2, 1.5);
    put(1, 2, 2, 4, 0.5);
    put(1, 3, 5, 4, 1.5);
    put(2, 2, 5, 1, 0.5);
    put(2, 2, 2, 3, 1);
  }

  // What blocks `first` to `last` put on a key.
  void put(size_t head, size_t first, size_t last, size_t key, float sum) {
    for (size_t block = first; block <= last; ++block) sums_[(head * kBlocks + block) * kTokens + key] = sum;
  }

  void copy_head(size_t from, size_t to) {
    std::copy_n(sums_.begin() + static_cast<ptrdiff_t>(from * kBlocks * kTokens), kBlocks * kTokens,
                sums_.begin() + static_cast<ptrdiff_t>(to * kBlocks * kTokens));
  }

  std::vector<Measured> run(std::vector<GivenParam> options = {}, int32_t evictions = 0) {
    baseline_.layers.clear();
    baseline_.layers.emplace_back().block_sums = Tensor(*backend_, DType::kF32, std::ssize(sums_));
    baseline_.layers[0].block_sums.upload(sums_.data(), sums_.size() * sizeof(float));
    for (const GivenParam& usual : {GivenParam{"window", "2", ""}, {"sinks", "1", ""}, {"top", "0.25", ""}}) {
      const auto is_it = [&](const GivenParam& given) { return given.key == usual.key; };
      if (std::none_of(options.begin(), options.end(), is_it)) options.push_back(usual);
    }
    const auto metric = make_metric("token_utility", std::move(options));
    const Sample* samples[] = {&sample_};
    metric->begin_case({.batch = {.backend = backend_.get(),
                                  .source = &info_,
                                  .sequences = 1,
                                  .sample_numbers = std::span(&number_, 1)},
                        .samples = samples,
                        .baseline = &baseline_,
                        .decode = decode_});
    if (evictions > 0) {
      const LayerView layer{.backend = *backend_};
      metric->evicting({.layer = layer});
    }
    std::vector<Measured> rows;
    metric->report({}, rows);
    return rows;
  }

  static const Measured& row(const std::vector<Measured>& rows, const std::string& name, int head,
                             std::optional<double> x = {}) {
    static const Measured kMissing{.metric = "missing", .value = std::nan(""), .text = "missing", .skipped = "missing"};
    const Measured* found = find(rows, name, x, 0, 7, head);
    EXPECT_TRUE(found) << name << " of head " << head;
    return found ? *found : kMissing;
  }

  static double of(const std::vector<Measured>& rows, const std::string& name, int head, std::optional<double> x = {}) {
    EXPECT_EQ(row(rows, name, head, x).skipped, "") << name;
    return row(rows, name, head, x).value;
  }

  static int64_t count(const std::vector<Measured>& rows, const std::string& name) {
    return std::count_if(rows.begin(), rows.end(), [&](const Measured& row) { return row.metric == name; });
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  SourceInfo info_ = ref::tiny_info(1, 3, 3, 2);
  Sample sample_ = tiny_sample(kTokens);
  int32_t number_ = 0;
  Baseline baseline_;
  std::vector<float> sums_ = std::vector<float>(3 * kBlocks * kTokens, 0);
  std::function<std::string(std::span<const int32_t>)> decode_;
};

// Each head uses one token, a quarter of the four. Far sums: head 0 has 4 on token 1 of 5, head 1 4.5 on token 4 of 5.
TEST_F(TokenUtilityByHand, TopShareIsWhatTheUsedTokensReceiveOfFarAttention) {
  const auto rows = run();
  EXPECT_EQ(of(rows, "utility_top_share", 0), 0.8);
  EXPECT_EQ(of(rows, "utility_top_share", 1), 0.9);
  EXPECT_EQ(of(rows, "utility_top_share", 2), 1);
}

// Heads 0 and 2 use token 1, head 1 token 4.
TEST_F(TokenUtilityByHand, OverlapIsTheMeanOverTheOtherHeads) {
  const auto rows = run();
  EXPECT_EQ(of(rows, "utility_overlap", 0), 0.5);
  EXPECT_EQ(of(rows, "utility_overlap", 1), 0);
  EXPECT_EQ(of(rows, "utility_overlap", 2), 0.5);
}

// The tokens that are not used: near 1.25 and far 1 in head 0, near 1.5 and far 0.5 in head 1, near 1 in head 2.
TEST_F(TokenUtilityByHand, TransientShareIsTheNearPartOfWhatTheOtherTokensReceive) {
  const auto rows = run();
  EXPECT_EQ(of(rows, "utility_transient_share", 0), 1.25 / 2.25);
  EXPECT_EQ(of(rows, "utility_transient_share", 1), 0.75);
  EXPECT_EQ(of(rows, "utility_transient_share", 2), 1);
}

// Heads 0 and 1 differ by 0.5 − 0.0625 on token 1 and by 0.75 on token 4; heads 1 and 2 by 0.25 − 0.0625 on token 1;
// head 2 uses nothing more than head 0 does.
TEST_F(TokenUtilityByHand, ExampleHasTheLargestOfTheSmallerContrasts) {
  const auto rows = run();
  EXPECT_EQ(of(rows, "utility_used", 0, 1), 0.5);
  EXPECT_EQ(of(rows, "utility_ignored", 1, 1), 0.0625);
  EXPECT_EQ(of(rows, "utility_used", 1, 4), 0.75);
  EXPECT_EQ(of(rows, "utility_ignored", 0, 4), 0);
  EXPECT_EQ(count(rows, "utility_used"), 2);
  EXPECT_EQ(count(rows, "utility_ignored"), 2);
}

// Heads 0 and 1 now differ by 0.03125 on token 1, heads 0 and 2 by 0.25 on it; heads 1 and 2 by 0.75 and 0.5 on tokens
// 4 and 3.
TEST_F(TokenUtilityByHand, ALargeContrastDoesNotMakeUpForASmallOne) {
  put(1, 2, 5, 1, 0.9375);
  put(2, 3, 5, 3, 1);
  const auto rows = run();
  EXPECT_EQ(of(rows, "utility_used", 1, 4), 0.75);
  EXPECT_EQ(of(rows, "utility_ignored", 2, 4), 0);
  EXPECT_EQ(of(rows, "utility_used", 2, 3), 0.5);
  EXPECT_EQ(of(rows, "utility_ignored", 1, 3), 0);
  EXPECT_EQ(count(rows, "utility_used"), 2);
}

// Token 1 is the second of block 0, which one of its queries sees; token 4 the first of block 2.
TEST_F(TokenUtilityByHand, CurvesBeginWithTheTokenAndAverageTheQueriesThatSeeIt) {
  const auto rows = run();
  EXPECT_EQ(of(rows, "utility_received_u", 0, 1), 1);
  EXPECT_EQ(of(rows, "utility_received_u", 1, 1), 0);
  EXPECT_EQ(of(rows, "utility_received_u", 1, 2), 0);
  for (const double x : {2, 4, 6, 8, 10}) EXPECT_EQ(of(rows, "utility_received_u", 0, x), 0.5) << x;
  for (const double x : {4, 6, 8, 10}) EXPECT_EQ(of(rows, "utility_received_u", 1, x), 0.0625) << x;
  EXPECT_EQ(of(rows, "utility_received_v", 0, 4), 0.125);
  EXPECT_EQ(of(rows, "utility_received_v", 1, 4), 0.25);
  for (const double x : {6, 8, 10}) EXPECT_EQ(of(rows, "utility_received_v", 0, x), 0) << x;
  for (const double x : {6, 8, 10}) EXPECT_EQ(of(rows, "utility_received_v", 1, x), 0.75) << x;
  EXPECT_EQ(count(rows, "utility_received_u"), 2 * 6);
  EXPECT_EQ(count(rows, "utility_received_v"), 2 * 4);
}

// Of eleven tokens the last block has one, and 1 and 2 are measured: head 0 uses 1, and head 1 is to use 2.
TEST_F(TokenUtilityByHand, TheLastBlockMayBeShort) {
  baseline_.lengths = {11};
  put(1, 2, 5, 2, 1.5);
  const auto rows = run();
  EXPECT_EQ(of(rows, "utility_received_u", 0, 8), 0.5);
  EXPECT_EQ(of(rows, "utility_received_u", 0, 10), 1);
  EXPECT_EQ(of(rows, "utility_used", 0, 1), 4.0 / 7);  // of seven far queries
}

TEST_F(TokenUtilityByHand, OnlyTheFirstSamplesHaveCurves) {
  number_ = 1;
  const auto one = run();
  EXPECT_EQ(count(one, "utility_received_u") + count(one, "utility_received_v"), 0);
  EXPECT_EQ(count(one, "utility_used"), 2);
  EXPECT_EQ(count(run({{"curves", "2", ""}}), "utility_received_u"), 12);
}

TEST_F(TokenUtilityByHand, TheTokenIsWrittenAsTextWhereTheCaseCanDecode) {
  sample_.ids[1] = 42;
  EXPECT_EQ(row(run(), "utility_used", 0, 1).text, "42");
  decode_ = [](std::span<const int32_t> ids) { return ids.front() == 42 ? "\n" : "?"; };
  const auto rows = run();
  EXPECT_EQ(row(rows, "utility_used", 0, 1).text, "\"\\n\"");
  EXPECT_EQ(row(rows, "utility_ignored", 1, 1).text, "\"\\n\"");
  EXPECT_EQ(row(rows, "utility_used", 1, 4).text, "\"?\"");
}

// 0.4 of four is 1.6, so two: head 0 tokens 1 and 2, head 1 tokens 1 and 4; head 2 token 1 and, of three that receive
// nothing, the oldest, 2.
TEST_F(TokenUtilityByHand, EqualTokensAreUsedFromTheOldestOn) {
  const auto rows = run({{"top", "0.4", ""}});
  EXPECT_EQ(of(rows, "utility_overlap", 0), 0.75);
  EXPECT_EQ(of(rows, "utility_overlap", 1), 0.5);
  EXPECT_EQ(of(rows, "utility_overlap", 2), 0.75);
  EXPECT_EQ(of(rows, "utility_top_share", 0), 1);
  EXPECT_EQ(of(rows, "utility_transient_share", 0), 1);  // near 0.75 on tokens 3 and 4
}

// With 1 from each block token 0 has a mean of 0.5, more than token 1 in head 2; far from it are blocks 1 to 5.
TEST_F(TokenUtilityByHand, SinksAreLeftOut) {
  put(2, 0, 5, 0, 1);
  EXPECT_EQ(of(run(), "utility_top_share", 2), 1);
  const auto rows = run({{"sinks", "0", ""}});
  EXPECT_EQ(of(rows, "utility_top_share", 2), 5.0 / 7);
  EXPECT_EQ(of(rows, "utility_overlap", 2), 0);
}

TEST_F(TokenUtilityByHand, EqualExamplesAreOfTheLowestHeads) {
  copy_head(0, 2);
  const auto rows = run();  // heads 1 and 2 differ as much as heads 0 and 1
  EXPECT_EQ(of(rows, "utility_used", 0, 1), 0.5);
  EXPECT_EQ(of(rows, "utility_used", 1, 4), 0.75);
  EXPECT_EQ(count(rows, "utility_used"), 2);
}

TEST_F(TokenUtilityByHand, HeadsThatAreAlikeHaveNoExample) {
  copy_head(0, 1);
  copy_head(0, 2);
  const auto rows = run();
  for (const char* name : {"utility_used", "utility_ignored", "utility_received_u", "utility_received_v"}) {
    EXPECT_EQ(skipped(rows, name), "no two heads each use a token more than the other does") << name;
  }
  EXPECT_EQ(of(rows, "utility_overlap", 0), 1);
}

// A head whose far queries see the sink and young tokens alone has no used tokens, and no say in the others' overlap.
TEST_F(TokenUtilityByHand, HeadsWithoutFarAttentionAreSkipped) {
  copy_head(0, 1);
  put(2, 0, 5, 1, 0);
  const auto rows = run();
  for (const char* name : {"utility_top_share", "utility_overlap", "utility_transient_share"}) {
    EXPECT_EQ(row(rows, name, 2).skipped, "far queries give the measured tokens nothing") << name;
  }
  EXPECT_EQ(of(rows, "utility_overlap", 0), 1);
  put(1, 0, 5, 1, 0);
  put(1, 0, 5, 2, 0);
  EXPECT_EQ(row(run(), "utility_overlap", 0).skipped, "no other head uses any token");
}

TEST_F(TokenUtilityByHand, NothingIsTransientWhereOthersReceiveNothing) {
  put(2, 2, 2, 3, 0);
  const auto rows = run();
  EXPECT_EQ(row(rows, "utility_transient_share", 2).skipped, "the tokens that are not used receive nothing");
  EXPECT_EQ(of(rows, "utility_top_share", 2), 1);
}

TEST_F(TokenUtilityByHand, IsThatOfTheFullCache) {
  const auto rows = run({}, 1);
  for (const char* name : kEvery) EXPECT_EQ(skipped(rows, name), "utility is that of the full cache") << name;
}

// With a window of four tokens 1 and 2 have far queries for half of the text, with one of five token 1 alone.
TEST_F(TokenUtilityByHand, NeedsTwoTokensWithFarQueriesForHalfOfTheText) {
  EXPECT_EQ(of(run({{"window", "4", ""}}), "utility_top_share", 2), 1);
  const auto rows = run({{"window", "5", ""}});
  for (const char* name : kEvery) {
    EXPECT_EQ(skipped(rows, name), "fewer than two tokens have far queries for half of the text") << name;
  }
  EXPECT_EQ(rows.size(), std::size(kEvery));
  baseline_.lengths = {1};
  EXPECT_EQ(skipped(run(), "utility_overlap"), "fewer than two tokens have far queries for half of the text");
  baseline_.lengths = {kTokens};
  EXPECT_EQ(skipped(run({{"sinks", "100", ""}}), "utility_overlap"),
            "fewer than two tokens have far queries for half of the text");
}

TEST(TokenUtilityMetric, RefusesOptionsOutOfRange) {
  for (const auto& [key, text] : {std::pair("block", "0"), std::pair("window", "0"), std::pair("sinks", "-1"),
                                  std::pair("top", "0"), std::pair("top", "0.51")}) {
    EXPECT_THROW(make_metric("token_utility", {{key, text, ""}}), UserError) << key << " = " << text;
  }
}

// Two KV heads that attend to entries in proportion to weights.
class TokenUtilityOnAPass : public ::testing::Test {
 protected:
  static constexpr int kTokens = 22, kBlock = 4, kWindow = 3;
  using Weights = std::vector<double>;

  // Token 3 is head 0's and token 5 head 1's; no two weights of a head are equal.
  static std::vector<Weights> weights() {
    std::vector<Weights> heads(2);
    for (int j = 0; j < kTokens; ++j) {
      heads[0].push_back(j == 3 ? 30 : 1 + 0.25 * ((7 * j) % kTokens));
      heads[1].push_back(j == 5 ? 40 : 1 + 0.25 * ((5 * j) % kTokens));
    }
    return heads;
  }

  static ref::TinySample sample() {
    ref::TinySample sample{.queries = {{}}, .keys = {{}}, .values = {std::vector<float>(kTokens * 4, 1)}};
    const auto heads = weights();
    for (size_t j = 0; j < kTokens; ++j) {
      for (const Weights& head : heads) {
        for (const float key : {static_cast<float>(std::log(head[j])), 0.0F}) sample.keys[0].push_back(key);
        for (const float query : {std::sqrt(2.0F), 0.0F}) sample.queries[0].push_back(query);  // undoes 1/√head_dim
      }
    }
    sample.pre_rope_queries = sample.queries;
    return sample;
  }

  static double attention(const Weights& head, int query, int key) {
    double all = 0;
    for (int j = 0; j <= query; ++j) all += head[static_cast<size_t>(j)];
    return key > query ? 0 : head[static_cast<size_t>(key)] / all;
  }

  // The definition, a query at a time; mean is 0 where far queries are less than half of the text.
  struct Received {
    double near = 0, far = 0, mean = 0;
  };
  static Received received(const Weights& head, int key) {
    Received sum;
    int far_queries = 0;
    for (int query = key; query < kTokens; ++query) {
      const bool is_far = query / kBlock * kBlock - key >= kWindow;
      (is_far ? sum.far : sum.near) += attention(head, query, key);
      far_queries += is_far ? 1 : 0;
    }
    sum.mean = far_queries * 2 >= kTokens ? sum.far / far_queries : 0;
    return sum;
  }
};

TEST_F(TokenUtilityOnAPass, AgreesWithTheDefinition) {
  const auto backend = make_backend("cpu");
  ref::TinySource source(*backend, ref::tiny_info(1, 2, 2, 2), {sample()});
  const int32_t length = kTokens;
  ReplayedCase replayed{source, *backend, {tiny_sample(kTokens)}, full_schedule({&length, 1}, kTokens)};
  replayed.block = kBlock;
  const auto rows = measure(replayed, "token_utility", {{"window", "3", ""}, {"sinks", "1", ""}, {"top", "0.2", ""}});
  constexpr double kRounded = 1e-5;
  const auto near = [&](const std::string& name, std::optional<double> x, int head, double expected) {
    const Measured* row = find(rows, name, x, 0, 0, head);
    ASSERT_TRUE(row) << name;
    EXPECT_NEAR(row->value, expected, kRounded) << name << " of head " << head;
  };
  // The 14 queries from block 2 on are half of the text and far from tokens up to 5, the 10 from block 3 on are less
  // than half. Of the five tokens behind the sink a fifth is one.
  const auto heads = weights();
  EXPECT_EQ(received(heads[0], 6).mean, 0);
  const int used[] = {3, 5};
  for (int h = 0; h < 2; ++h) {
    double far_all = 0, far_other = 0, near_other = 0;
    for (int key = 1; key <= 5; ++key) {
      const Received sums = received(heads[static_cast<size_t>(h)], key);
      EXPECT_GT(sums.mean, 0);
      far_all += sums.far;
      if (key == used[h]) continue;
      far_other += sums.far;
      near_other += sums.near;
    }
    near("utility_top_share", {}, h, 1 - far_other / far_all);
    near("utility_transient_share", {}, h, near_other / (near_other + far_other));
    near("utility_overlap", {}, h, 0);
    near("utility_used", used[h], h, received(heads[static_cast<size_t>(h)], used[h]).mean);
    near("utility_ignored", used[1 - h], h, received(heads[static_cast<size_t>(h)], used[1 - h]).mean);
    for (const int first : {3, 4, 8, 12, 16, 20}) {
      const int end = std::min(kTokens, first / kBlock * kBlock + kBlock);
      double sum = 0;
      for (int query = first; query < end; ++query) sum += attention(heads[static_cast<size_t>(h)], query, 3);
      near("utility_received_u", first, h, sum / (end - first));
    }
  }
}

}  // namespace
}  // namespace kv::test
