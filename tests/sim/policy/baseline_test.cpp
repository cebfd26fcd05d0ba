#include "sim/policy/baseline.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/replay/baseline_pass.h"
#include "sim/source/model_source.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

constexpr int kTokens = 50;
constexpr int kBlock = 16;

class BaselineOfLlama : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto file = SafetensorsFile::open(ref::source_path("tests/data/llama/expected.safetensors"));
    ids_ = file.read_i32(file.require("input_ids"));
    ids_.resize(kTokens);
    const std::span<const int32_t> sequences[] = {ids_};
    baseline_ = compute_baseline(*backend_, source_, sequences,
                                 {.statistics_block = kBlock,
                                  .block_sums = true,
                                  .block_max = true,
                                  .outputs = true,
                                  .projections = true,
                                  .value_norms = true});
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  ModelSource source_{*backend_, load_model(ref::source_path("tests/data/llama"))};
  std::vector<int32_t> ids_;
  Baseline baseline_;
};

// Every query spreads a mass of 1: the sums of a block add up to its number of queries.
TEST_F(BaselineOfLlama, BlockSumsAddUpToTheQueriesOfTheBlock) {
  ASSERT_EQ(baseline_.blocks, 4);
  const float* sums = baseline_.layers[1].block_sums.ref().as<float>();
  for (int head = 0; head < 2; ++head) {
    for (int block = 0; block < 4; ++block) {
      double total = 0;
      for (int j = 0; j < kTokens; ++j) total += sums[(head * 4 + block) * kTokens + j];
      EXPECT_NEAR(total, block < 3 ? 16 : 2, 1e-4);
    }
  }
}

TEST_F(BaselineOfLlama, NothingAttendsToTheFuture) {
  const float* max = baseline_.layers[0].block_max.ref().as<float>();
  for (int head = 0; head < 8; ++head) {
    for (int block = 0; block < 4; ++block) {
      const int end = std::min(kTokens, (block + 1) * kBlock);
      for (int j = 0; j < kTokens; ++j) {
        const float value = max[(head * 4 + block) * kTokens + j];
        EXPECT_EQ(value > 0.0f, j < end) << "head " << head << ", block " << block << ", key " << j;
      }
    }
  }
}

// ‖v W_O^(h)‖ the long way, for one token and every query head.
TEST_F(BaselineOfLlama, ValueNormsAreThoseOfTheProjectedValues) {
  const int layer = 2;
  const int token = 37;
  const float* values = baseline_.layers[layer].values.ref().as<float>() + token * 2 * 16;
  const float* weight = source_.output_weight(layer).as<float>();  // [128, 8 · 16]
  for (int head = 0; head < 8; ++head) {
    double squares = 0;
    for (int out = 0; out < 128; ++out) {
      double sum = 0;
      for (int d = 0; d < 16; ++d) sum += double{weight[out * 128 + head * 16 + d]} * values[(head / 4) * 16 + d];
      squares += sum * sum;
    }
    const float got = baseline_.layers[layer].value_norms.ref().as<float>()[token * 8 + head];
    EXPECT_NEAR(got, std::sqrt(squares), 1e-5 * std::sqrt(squares));
  }
}

TEST(BaselineNeeds, MergingTakesTheCommonBlockAndEveryWish) {
  BaselineNeeds needs{.statistics_block = 256, .block_sums = true};
  needs.merge({.outputs = true});
  EXPECT_EQ(needs.statistics_block, 256);
  needs.merge({.statistics_block = 128, .block_max = true});
  EXPECT_EQ(needs.statistics_block, 128);
  EXPECT_TRUE(needs.block_sums && needs.block_max && needs.outputs);
  EXPECT_FALSE(needs.projections);
}

}  // namespace
}  // namespace kv
