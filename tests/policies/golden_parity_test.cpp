// What Golden evicts, and why, against the labels that the authors' own code makes of the same tensors:
// build_oracle_targets of tests/data/foresight/make.py, 2 layers, 3 events, 2 KV heads.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/io/safetensors.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"
#include "tests/support/backends.h"
#include "tests/support/close.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

constexpr int kLayers = 2, kEvents = 3, kHeads = 2, kGroup = 2, kDim = 8, kBudget = 24, kInterval = 8, kTokens = 53;

// Takes down what leaves and the scores by which it does, [layer][event, KV head].
class Evictions final : public Observer {
 public:
  std::vector<std::vector<int32_t>> dropped[kLayers];
  std::vector<std::vector<float>> scores[kLayers];

  void evicting(const EvictionView& view) override {
    const auto layer = static_cast<size_t>(view.layer.layer);
    for (int head = 0; head < kHeads; ++head) {
      std::vector<uint8_t> keep(static_cast<size_t>(view.layer.lengths[static_cast<size_t>(head)]));
      view.layer.backend.download(keep.data(), view.keep.row(head), keep.size());
      std::vector<int32_t>& slots = dropped[layer].emplace_back();
      for (size_t slot = 0; slot < keep.size(); ++slot) {
        if (keep[slot] == 0) slots.push_back(static_cast<int32_t>(slot));
      }
      std::vector<float>& of_candidates = scores[layer].emplace_back(static_cast<size_t>(kBudget));
      view.layer.backend.download(of_candidates.data(), view.scores.row(head), of_candidates.size() * sizeof(float));
    }
  }
};

// [heads, tokens, dim] to [tokens, heads, dim].
std::vector<float> by_token(const std::vector<float>& from, int heads) {
  std::vector<float> to;
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      const auto at = from.begin() + (h * kTokens + t) * kDim;
      to.insert(to.end(), at, at + kDim);
    }
  }
  return to;
}

TEST(GoldenParity, EvictsWhatTheAuthorsLabelsSay) {
  const SafetensorsFile file = open_packed("tests/data/foresight/expected.safetensors");
  TinySample sample;
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto of_layer = [&](const char* name, int heads) {
      const int64_t size = int64_t{heads} * kTokens * kDim;
      return by_token(slice(file.read_f32(file.require(name)), layer * size, size), heads);
    };
    sample.queries.push_back(of_layer("q", kHeads * kGroup));
    sample.keys.push_back(of_layer("k", kHeads));
    sample.values.push_back(of_layer("v", kHeads));
  }
  sample.pre_rope_queries = sample.queries;
  const auto backend = make_backend("cpu");
  TinySource source(*backend, tiny_info(kLayers, kHeads * kGroup, kHeads, kDim), {sample});
  const std::vector<int32_t> ids(kTokens, 0);
  const std::span<const int32_t> sequences[] = {ids};
  const Baseline baseline =
      compute_baseline(*backend, source, sequences, {.statistics_block = kInterval, .block_sums = true});
  Policy golden = make_policy("golden", {});
  Evictions evictions;
  Observer* const observers[] = {&evictions};
  const int32_t lengths[] = {kTokens};
  replay({.backend = *backend,
          .source = source,
          .policy = golden,
          .sequences = sequences,
          .schedule = decode_schedule(lengths, kBudget, kInterval),
          .budget = kBudget,
          .interval = kInterval,
          .baseline = &baseline,
          .observers = observers});

  const std::vector<int32_t> drop = file.read_i32(file.require("labels.drop"));
  const std::vector<float> target = file.read_f32(file.require("labels.target"));  // −α
  for (int layer = 0; layer < kLayers; ++layer) {
    ASSERT_EQ(std::ssize(evictions.dropped[layer]), kEvents * kHeads);
    for (int64_t row = 0; row < kEvents * kHeads; ++row) {
      std::vector<int32_t> want = slice(drop, (layer * kEvents * kHeads + row) * kInterval, kInterval);
      std::ranges::sort(want);
      EXPECT_EQ(evictions.dropped[layer][static_cast<size_t>(row)], want) << "layer " << layer << ", row " << row;
      std::vector<double> alpha;
      for (const float value : slice(target, (layer * kEvents * kHeads + row) * kBudget, kBudget)) {
        alpha.push_back(-double{value});
      }
      // A mean of 16 probabilities, each of an exponential of f32 logits, in both.
      expect_close(evictions.scores[layer][static_cast<size_t>(row)], alpha, {.roundings = 200, .magnitude = 0.1});
    }
  }
}

}  // namespace
}  // namespace kv::ref
