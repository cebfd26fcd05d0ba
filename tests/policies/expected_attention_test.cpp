#include <gtest/gtest.h>

#include <cmath>

#include "kernels/error.h"
#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"expected-attention", {0xea69574a05f32d2d, 0x1b614fc307a879a0}};

// Every query is the same and nothing rotates (frequency 0): the expected attention is that query's softmax, and the
// covariance is 0. Values are (1, 1).
Event event_of(const std::vector<float>& weights, const std::string& sinks, int keep) {
  const auto backend = make_backend("cpu");
  SourceInfo info = tiny_info(1, 1, 1, 2);
  info.inv_freq = {0};
  TinySource source(*backend, info, {weighted_sample({weights})});
  const Options options = {{"sinks", sinks, ""}, {"epsilon", "0", ""}};
  const PolicyRun run =
      run_policy(source, *backend,
                 one_shot_run("expected-attention", options, {0}, {static_cast<int32_t>(weights.size())}, {keep}));
  EXPECT_EQ(run.events.size(), 1u);
  return run.events.at(0);
}

// Context of five tokens with weights 3 1 2 5 1: attention 3/12 1/12 2/12 5/12 1/12, times the value norm √2.
TEST(ExpectedAttention, OfOneRepeatedQueryIsItsAttention) {
  const Event event = event_of({3, 1, 2, 5, 1, 1}, "0", 2);
  const double weights[] = {3, 1, 2, 5, 1};
  for (size_t j = 0; j < 5; ++j) EXPECT_NEAR(event.scores[j], weights[j] / 12 * std::sqrt(2.0), 1e-6);
  EXPECT_EQ(event.kept, (std::vector<int32_t>{0, 3}));
}

// Keys are all the same, so whoever asks pays every entry as much: the longest values stay.
TEST(ExpectedAttention, WeighsByTheValueNorm) {
  const Options options = {{"sinks", "0", ""}, {"epsilon", "0", ""}};
  EXPECT_EQ(kept_once("expected-attention", options, {{1, 1, 1, 1, 1, 1}}, 2, {1, 2, 9, 1, 5, 1}),
            (std::vector<int32_t>{2, 4}));
}

TEST(ExpectedAttention, ProtectsSinks) {
  EXPECT_EQ(event_of({1, 3, 2, 5, 1, 1}, "0", 2).kept, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(event_of({1, 3, 2, 5, 1, 1}, "1", 2).kept, (std::vector<int32_t>{0, 3}));
}

KV_OVER_BACKENDS(Runs, ExpectedAttentionOn);

TEST_P(ExpectedAttentionOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  const Agreement loose = {.tolerance = 1e-4};  // exp of logits near 30, whose f32 error is 30·2⁻²³ a step
  expect_agrees(*backend, "expected-attention", {}, naive_expected_attention(512, 4, 0.02, true), loose);
  expect_agrees(*backend, "expected-attention",
                {{"use_covariance", "false", ""}, {"future", "3", ""}, {"epsilon", "0", ""}},
                naive_expected_attention(3, 4, 0, false), loose);
  expect_agrees(*backend, "expected-attention", {{"sinks", "0", ""}}, naive_expected_attention(512, 0, 0.02, true),
                {.interval = 0, .tolerance = 1e-4});
}

TEST(ExpectedAttention, RefusesWhatItCannotRotate) {
  const auto backend = make_backend("cpu");
  SourceInfo info = tiny_info(1, 1, 1, 2);
  const auto run = [&] {
    TinySource source(*backend, info, {weighted_sample({{1, 1, 1, 1, 1, 1, 1}})});
    run_policy(source, *backend, one_shot_run("expected-attention", {}, {0}, {7}, {5}));
  };
  run();
  info.attention_factor = 2;
  EXPECT_THROW(run(), UserError);
  info.attention_factor = 1;
  info.inv_freq.clear();
  EXPECT_THROW(run(), UserError);
  info.has_pre_rope_queries = false;
  EXPECT_THROW(run(), UserError);
}

TEST(ExpectedAttention, RefusesABudgetOfItsSinks) {
  expect_refused("expected-attention", {}, 4, 2,
                 "expected-attention: budget 4 does not exceed the 4 protected entries");
}

}  // namespace
}  // namespace kv::ref
