// One of ForesightKV's training steps, made of the ops and of sim/learned, against what the authors' own code computes
// from the same tensors: tests/data/foresight (tests/data/README.md says what each is). 2 layers, 3 events, 2 KV heads:
// the rows of a layer are [event, KV head], as if the events were sequences. Their scores are high where an entry goes,
// ours where it stays: labels, scores and the output's weights change sign, which is exact.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/pairwise_hinge.h"
#include "kernels/rate_entries.h"
#include "sim/io/safetensors.h"
#include "sim/learned/adam.h"
#include "sim/learned/eviction_reward.h"
#include "sim/learned/learning_rate.h"
#include "tests/support/close.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

constexpr int kLayers = 2, kEvents = 3, kHeads = 2, kRows = kEvents * kHeads, kEntries = 24, kDim = 8, kFeatures = 16,
              kHidden = 16, kTokens = 53;
constexpr int64_t kInputs = 2 * kDim + kFeatures, kParameters = kInputs * kHidden + 2 * kHidden + 1;

class ForesightCode : public testing::Test {
 protected:
  std::vector<float> read(const std::string& name) const { return file_.read_f32(file_.require(name)); }
  std::vector<int32_t> read_i32(const std::string& name) const { return file_.read_i32(file_.require(name)); }
  std::vector<float> layer_of(const std::string& name, int layer) const {
    const std::vector<float> all = read(name);
    const auto size = static_cast<int64_t>(all.size()) / kLayers;
    return ref::slice(all, layer * size, size);
  }
  static std::vector<float> negated(std::vector<float> values) {
    for (float& value : values) value = -value;
    return values;
  }

  // The entries that are candidates at each event.
  ref::CacheRows entries(int layer) const {
    const std::vector<float> k = layer_of("k", layer), v = layer_of("v", layer);
    const std::vector<int32_t> tokens = read_i32("code.tokens");
    ref::CacheRows rows{.kv_heads = kHeads, .head_dim = kDim};
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<int32_t> positions = ref::slice(tokens, (layer * kRows + row) * kEntries, kEntries);
      const auto of_head = [&](const std::vector<float>& all) {
        std::vector<float> gathered;
        for (const int32_t token : positions) {
          const std::vector<float> vector = ref::slice(all, (row % kHeads * kTokens + token) * kDim, kDim);
          gathered.insert(gathered.end(), vector.begin(), vector.end());
        }
        return gathered;
      };
      rows.keys.push_back(of_head(k));
      rows.values.push_back(of_head(v));
      rows.positions.push_back(positions);
    }
    rows.columns.resize(kRows);
    return rows;
  }
  // [row, feature, slot], where the file has the slot before the feature.
  std::vector<float> features(int layer) const {
    const std::vector<float> from = layer_of("code.features", layer);
    std::vector<float> to;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t f = 0; f < kFeatures; ++f) {
        for (int64_t slot = 0; slot < kEntries; ++slot) to.push_back(from[(row * kEntries + slot) * kFeatures + f]);
      }
    }
    return to;
  }
  // Of all layers, head after head. `set` is "weights", "step1", …, or "golden.gradient"; the output's bias, which no
  // step moves, is that of `bias_set`.
  std::vector<float> parameters(const std::string& set, const std::string& bias_set = "weights") const {
    std::vector<float> all;
    const std::vector<float> w1 = read(set + ".fc1.weight"), b1 = read(set + ".fc1.bias");
    const std::vector<float> w2 = negated(read(set + ".fc2.weight")), b2 = negated(read(bias_set + ".fc2.bias"));
    const auto append = [&](const std::vector<float>& from, int64_t head, int64_t count) {
      all.insert(all.end(), from.begin() + head * count, from.begin() + (head + 1) * count);
    };
    for (int64_t head = 0; head < kLayers * kHeads; ++head) {
      append(w1, head, kInputs * kHidden);
      append(b1, head, kHidden);
      append(w2, head, kHidden);
      append(b2, head, 1);
    }
    return all;
  }

  // What the code does with a layer: scores of its rows, the hinge, and the parameters' gradient.
  struct Layer {
    std::vector<float> scores, score_gradient;
    double loss = 0;
    std::vector<double> gradient;  // [heads, parameters], the mean over rows that have a pair
  };
  Layer learn(int layer, const std::vector<float>& all_parameters, const std::vector<float>& target) const {
    const ref::PagedCache cache(*backend_, entries(layer));
    Tensor parameters =
        ref::upload_array(*backend_, ref::slice(all_parameters, layer * kHeads * kParameters, kHeads * kParameters));
    const Tensor features = ref::upload_array(*backend_, this->features(layer));
    const EntryNetwork network{.entry_dim = kDim,
                               .feature_count = kFeatures,
                               .hidden = kHidden,
                               .features = features.slots<float>(kEntries),
                               .parameters = ref::data_of<float>(parameters)};
    Tensor scores(*backend_, DType::kF32, kRows * kEntries), slope(*backend_, DType::kF32, kRows * kEntries);
    Tensor loss(*backend_, DType::kF32, kRows), pairs(*backend_, DType::kI32, kRows);
    const Tensor targets = ref::upload_array(*backend_, negated(target));
    backend_->rate_entries({.cache = cache.view(), .network = network, .output = scores.slots<float>(kEntries)});
    backend_->pairwise_hinge({.targets = targets.slots<float>(kEntries),
                              .scores = scores.slots<float>(kEntries),
                              .lengths = cache.view().lengths,
                              .rows = kRows,
                              .gradient = slope.slots<float>(kEntries),
                              .loss = ref::data_of<float>(loss),
                              .pairs = ref::data_of<int32_t>(pairs)});
    Tensor gradients = ref::upload_array(*backend_, std::vector<float>(kRows * kParameters));
    backend_->rate_entries_backward({.cache = cache.view(),
                                     .network = network,
                                     .output_gradient = slope.slots<float>(kEntries),
                                     .gradients = ref::data_of<float>(gradients)});
    return mean_over_rows(ref::download_array<float>(scores), ref::download_array<float>(slope),
                          ref::download_array<float>(loss), ref::download_array<int32_t>(pairs),
                          ref::download_array<float>(gradients));
  }

  static Layer mean_over_rows(std::vector<float> scores, std::vector<float> slope, const std::vector<float>& loss,
                              const std::vector<int32_t>& pairs, const std::vector<float>& gradients) {
    Layer layer{.scores = std::move(scores), .score_gradient = std::move(slope)};
    layer.gradient.assign(kHeads * kParameters, 0);
    int paired = 0;
    for (const int32_t count : pairs) paired += count > 0;
    for (int64_t row = 0; row < kRows; ++row) {
      layer.loss += double{loss[row]} / paired;
      for (int64_t p = 0; p < kParameters; ++p) {
        layer.gradient[row % kHeads * kParameters + p] += double{gradients[row * kParameters + p]} / paired;
      }
    }
    for (float& g : layer.score_gradient) g /= static_cast<float>(paired);
    return layer;
  }

  const SafetensorsFile file_ = ref::open_packed("tests/data/foresight/expected.safetensors");
  const std::unique_ptr<Backend> backend_ = make_backend("cpu");
};

double largest_of(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

// Both sides round in f32, in other orders: some tens of terms, relative to the largest number of a tensor.
constexpr double kRoundings = 20;

TEST_F(ForesightCode, ScoresAreItsNetworks) {
  for (int layer = 0; layer < kLayers; ++layer) {
    const Layer got = learn(layer, parameters("weights"), layer_of("labels.target", layer));
    const std::vector<float> want = negated(layer_of("code.phi", layer));
    ref::expect_close(got.scores, want, {.roundings = kRoundings, .magnitude = largest_of(want)});
  }
}

TEST_F(ForesightCode, LossAndGradientsAreItsHinges) {
  const std::vector<float> want = parameters("golden.gradient", "golden.gradient");
  for (int layer = 0; layer < kLayers; ++layer) {
    const Layer got = learn(layer, parameters("weights"), layer_of("labels.target", layer));
    ref::expect_close(got.loss, double{read("golden.loss")[layer]}, {.roundings = kRoundings});
    const std::vector<float> slope = negated(layer_of("golden.phi_gradient", layer));
    ref::expect_close(got.score_gradient, slope, {.roundings = kRoundings, .magnitude = largest_of(slope)});
    const std::vector<float> gradient = ref::slice(want, layer * kHeads * kParameters, kHeads * kParameters);
    ref::expect_close(got.gradient, gradient, {.roundings = kRoundings, .magnitude = largest_of(gradient)});
  }
}

TEST_F(ForesightCode, TiedTargetsAndRowsWithoutPairsCountAsThere) {
  constexpr int64_t kTiedRows = 6;
  const Tensor targets = ref::upload_array(*backend_, read("ties.target"));
  const Tensor scores = ref::upload_array(*backend_, read("ties.phi"));
  Tensor lengths = ref::upload_array(*backend_, std::vector<int32_t>(kTiedRows, kEntries));
  Tensor slope(*backend_, DType::kF32, kTiedRows * kEntries), loss(*backend_, DType::kF32, kTiedRows);
  Tensor pairs(*backend_, DType::kI32, kTiedRows);
  backend_->pairwise_hinge({.targets = targets.slots<float>(kEntries),
                            .scores = scores.slots<float>(kEntries),
                            .lengths = ref::data_of<int32_t>(lengths),
                            .rows = kTiedRows,
                            .gradient = slope.slots<float>(kEntries),
                            .loss = ref::data_of<float>(loss),
                            .pairs = ref::data_of<int32_t>(pairs)});
  const std::vector<int32_t> counts = ref::download_array<int32_t>(pairs);
  EXPECT_EQ(counts[0], 0);
  double sum = 0;
  for (const float row : ref::download_array<float>(loss)) sum += row;
  std::vector<double> gradient;
  for (const float g : ref::download_array<float>(slope)) gradient.push_back(double{g} / (kTiedRows - 1));
  ref::expect_close(sum / (kTiedRows - 1), double{read("ties.loss")[0]}, {.roundings = kRoundings});
  ref::expect_close(gradient, read("ties.phi_gradient"), {.roundings = kRoundings});
}

// The first step has rate 0, so `step1` are the weights after the second.
TEST_F(ForesightCode, StepsAreItsAdams) {
  std::vector<float> weights = parameters("weights");
  Adam adam(weights.size());
  const std::vector<float> golden = read("labels.target"), tied = read("step.tied_target");
  const std::vector<std::vector<std::vector<float>>> batches = {{golden}, {golden}, {tied}, {golden, tied}};
  for (size_t step = 0; step < batches.size(); ++step) {
    std::vector<double> gradient(weights.size());
    std::array<double, kLayers> loss{};
    for (const std::vector<float>& target : batches[step]) {
      const int64_t of_layer = std::ssize(target) / kLayers;
      for (int layer = 0; layer < kLayers; ++layer) {
        const Layer learned = learn(layer, weights, ref::slice(target, layer * of_layer, of_layer));
        loss[layer] += learned.loss;
        for (size_t p = 0; p < learned.gradient.size(); ++p) {
          gradient[layer * learned.gradient.size() + p] += learned.gradient[p];
        }
      }
    }
    // The last bias moves no difference of scores; its gradient is rounding, which Adam would blow up to a step.
    for (size_t head = 1; head <= kLayers * kHeads; ++head) gradient[head * kParameters - 1] = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      ref::expect_close(loss[layer], double{read("step.loss")[step * kLayers + layer]}, {.roundings = kRoundings});
    }
    const double norm = norm_of(gradient), want_norm = read("step.norm")[step];
    ref::expect_close(norm, want_norm, {.roundings = kRoundings, .magnitude = want_norm});
    clip_norm(gradient, norm, 1.0);
    adam.step(weights, gradient, 1e-2 * cosine_after_warm_up(static_cast<int64_t>(step), 10, 1000));
    const std::string after = step == 0 ? "weights" : "step" + std::to_string(step);
    // A step is at most the rate, 3e-3 by now, times a quotient whose terms round relatively; weights are below 0.1.
    ref::expect_close(weights, parameters(after), {.roundings = 1, .magnitude = 1, .epsilon = 1e-6});
  }
}

TEST_F(ForesightCode, LearningRatesAreItsSchedules) {
  const std::vector<int32_t> steps = read_i32("schedule.step");
  const std::vector<float> supervised = read("schedule.supervised"), reinforced = read("schedule.reinforced");
  for (size_t i = 0; i < steps.size(); ++i) {
    ref::expect_close(1e-2 * cosine_after_warm_up(steps[i], 10, 1000), double{supervised[i]}, {.magnitude = 1e-2});
    ref::expect_close(3e-4 * constant_after_warm_up(steps[i], 10), double{reinforced[i]}, {.magnitude = 3.3e-4});
  }
}

// Losses are by predicted token; those from B + L on count.
TEST_F(ForesightCode, RewardsAndAdvantagesAreThosePublished) {
  constexpr int64_t kFirst = 32, kRollouts = 8;
  const std::vector<float> full = read("reward.original"), entropy = read("reward.entropy");
  const std::vector<float> evicted = read("reward.evicted");
  const int64_t tokens = std::ssize(full), counted = tokens - kFirst;
  const std::vector<std::pair<std::string, RewardKind>> kinds = {{"reward.code", RewardKind::kOurs},
                                                                 {"reward.all", RewardKind::kAll},
                                                                 {"reward.low", RewardKind::kLow},
                                                                 {"reward.high", RewardKind::kHigh},
                                                                 {"reward.low_large", RewardKind::kLowLarge}};
  for (const auto& [name, kind] : kinds) {
    std::vector<double> rewards;
    for (int64_t rollout = 0; rollout < kRollouts; ++rollout) {
      rewards.push_back(eviction_reward(ref::slice(full, kFirst, counted),
                                        ref::slice(evicted, rollout * tokens + kFirst, counted),
                                        ref::slice(entropy, kFirst, counted), {.kind = kind}));
    }
    const std::vector<float> want = read(name);
    SCOPED_TRACE(name);
    ref::expect_close(rewards, want, {.roundings = kRoundings, .magnitude = largest_of(want)});
    if (kind == RewardKind::kOurs) {
      // A difference of rewards over their spread, which is about as large.
      ref::expect_close(group_advantages(rewards), read("reward.advantage"), {.roundings = 10 * kRoundings});
    }
  }
}

}  // namespace
}  // namespace kv
