#include <gtest/gtest.h>

#include <memory>
#include <sstream>

#include "harness/metrics/metric.h"
#include "tests/support/replayed.h"

namespace kv::test {
namespace {

// Eight tokens in blocks of two, three KV heads; block sums written by hand (two queries a block, so 2 = all
// attention).
class AttentionMapsByHand : public ::testing::Test {
 protected:
  AttentionMapsByHand() {
    baseline_.sequences = 1;
    baseline_.max_tokens = 8;
    baseline_.blocks = 4;
    baseline_.lengths = {8};
    baseline_.has = {.statistics_block = 2, .block_sums = true};
    std::vector<float> sums(3 * 4 * 8, 0);
    const auto put = [&](size_t head, size_t block, size_t key, float sum) {
      sums[(head * 4 + block) * 8 + key] = sum;
    };
    for (size_t block = 0; block < 4; ++block) {
      put(0, block, 0, 2);                          // always key 0: a vertical line
      put(1, block, 2 * block, 2);                  // always the own block: the diagonal
      put(2, block, block < 2 ? 0 : block - 1, 2);  // key 1 for block 2, key 2 for block 3: both die at once
    }
    baseline_.layers.emplace_back().block_sums = Tensor(*backend_, DType::kF32, static_cast<int64_t>(sums.size()));
    baseline_.layers[0].block_sums.upload(sums.data(), sums.size() * sizeof(float));
    info_.layer_numbers = {7};
  }

  std::vector<Measured> run(std::vector<GivenParam> options = {}, int32_t evictions = 0) {
    const auto metric = make_metric("attention_maps", std::move(options));
    const Sample* samples[] = {&sample_};
    metric->begin_case({.batch = {.backend = backend_.get(),
                                  .source = &info_,
                                  .sequences = 1,
                                  .sample_numbers = std::span(&number_, 1)},
                        .samples = samples,
                        .baseline = &baseline_,
                        .decode = {}});
    if (evictions > 0) {
      const LayerView layer{.backend = *backend_};
      metric->evicting({.layer = layer});
    }
    std::vector<Measured> rows;
    metric->report({}, rows);
    return rows;
  }

  double kind(const std::vector<Measured>& rows, const std::string& name, int head) {
    return find(rows, "attention_kind_" + name, {}, 0, 7, head)->value;
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  SourceInfo info_ = ref::tiny_info(1, 3, 3, 2);
  Sample sample_ = tiny_sample(8);
  int32_t number_ = 0;
  Baseline baseline_;
};

TEST_F(AttentionMapsByHand, PureHeadsScoreOneInTheirKind) {
  const auto rows = run();
  const double scores[3][3] = {{0, 1, 0}, {1, 0, 0}, {0, 0, 1}};
  for (int head = 0; head < 3; ++head) {
    EXPECT_EQ(kind(rows, "local", head), scores[head][0]) << head;
    EXPECT_EQ(kind(rows, "global", head), scores[head][1]) << head;
    EXPECT_EQ(kind(rows, "semantic", head), scores[head][2]) << head;
  }
}

TEST_F(AttentionMapsByHand, EachKindShowsItsOwnHead) {
  const auto rows = run();
  int maps = 0;
  for (const Measured& row : rows) {
    if (row.metric.rfind("attention_map_", 0) != 0) continue;
    ++maps;
    EXPECT_EQ(row.layer, 7);
    EXPECT_EQ(row.head, row.metric == "attention_map_global" ? 0 : row.metric == "attention_map_local" ? 1 : 2);
    std::istringstream cells(row.text);
    double sum = 0;
    int count = 0;
    for (double cell = 0; cells >> cell; ++count) sum += cell;
    EXPECT_EQ(count, 8);
    EXPECT_EQ(sum, 1);
    EXPECT_EQ(row.value, 1.0 / 8);
  }
  EXPECT_EQ(maps, 12);
}

TEST_F(AttentionMapsByHand, PoolingAveragesQueriesAndAddsKeys) {
  const auto rows = run({{"cells", "2", ""}});
  // Local head: blocks 0, 1 attend to keys 0 and 2 (left half), blocks 2, 3 to 4 and 6 (right half).
  EXPECT_EQ(find(rows, "attention_map_local", 0, 0, 7, 1)->text, "1 0");
  EXPECT_EQ(find(rows, "attention_map_local", 1, 0, 7, 1)->text, "0 1");
  EXPECT_EQ(find(rows, "attention_map_semantic", 1, 0, 7, 2)->text, "1 0");
}

TEST_F(AttentionMapsByHand, AreThoseOfTheFullCache) {
  EXPECT_EQ(skipped(run({}, 1), "attention_map"), "maps are those of the full cache");
}

TEST_F(AttentionMapsByHand, NeedThreeBlocks) {
  baseline_.lengths = {4};
  EXPECT_EQ(skipped(run(), "attention_map"), "the text is shorter than three blocks");
}

// On a real pass the three scores share out all attention.
TEST(AttentionMapsMetric, ScoresAddUpToOne) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = ref::tiny_info(2, 4, 2, 8);
  ref::TinySource source(*backend, info, {ref::random_sample(info, 50, 5)});
  const int32_t length = 50;
  ReplayedCase replayed{source, *backend, {tiny_sample(50)}, full_schedule({&length, 1}, 50)};
  replayed.block = 8;
  const auto rows = measure(replayed, "attention_maps");
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 2; ++head) {
      double sum = 0;
      for (const char* name : {"local", "global", "semantic"}) {
        const Measured* row = find(rows, std::string("attention_kind_") + name, {}, 0, layer, head);
        ASSERT_TRUE(row);
        EXPECT_GE(row->value, 0);
        sum += row->value;
      }
      EXPECT_NEAR(sum, 1, 1e-5);
    }
  }
}

}  // namespace
}  // namespace kv::test
