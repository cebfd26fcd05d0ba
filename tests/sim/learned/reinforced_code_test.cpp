// The reinforced stage's loss against what ForesightKV's own code computes from the same scores, and against the exact
// probability of a drawn order: tests/data/foresight (tests/data/README.md says what each is). Rows are [layer, event,
// KV head]; as if (layer, event) were a sequence. Their scores are high where an entry goes, ours where it stays.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/eviction_surrogate.h"
#include "sim/io/safetensors.h"
#include "tests/support/close.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

constexpr int kLayers = 2, kHeads = 2, kEntries = 24, kDrawn = 8;

class ReinforcedCode : public testing::Test {
 protected:
  std::vector<float> read(const std::string& name) const { return file_.read_f32(file_.require(name)); }
  std::vector<int32_t> read_i32(const std::string& name) const { return file_.read_i32(file_.require(name)); }
  static std::vector<float> negated(std::vector<float> values) {
    for (float& value : values) value = -value;
    return values;
  }

  struct Scores {
    std::vector<float> learning, old, reference;  // φ, [rows, entries]
    std::vector<int32_t> drop;                    // [rows, drawn], in the order of the draws
    std::vector<uint8_t> stays = {};              // [rows, entries]; none: all are candidates
    DrawLaw law = DrawLaw::kMarginal;
    float kl_weight = 0.05F;
  };
  struct Result {
    double loss = 0;              // Σ rows
    std::vector<float> gradient;  // by y
  };
  Result rate(const Scores& scores, float advantage) const {
    const int64_t rows = std::ssize(scores.learning) / kEntries, kv_heads = std::min<int64_t>(rows, kHeads);
    const ref::PagedCache cache(*backend_, ref::random_rows(std::vector<int32_t>(static_cast<size_t>(rows), kEntries),
                                                            static_cast<int>(kv_heads), 8, 1));
    std::vector<uint8_t> keep(static_cast<size_t>(rows * kEntries), 1);
    std::vector<float> order(keep.size(), 100);
    for (size_t i = 0; i < scores.drop.size(); ++i) {
      const size_t slot = i / kDrawn * kEntries + static_cast<size_t>(scores.drop[i]);
      keep[slot] = 0;
      order[slot] = static_cast<float>(i % kDrawn);
    }
    const Tensor learning = ref::upload_array(*backend_, negated(scores.learning));
    const Tensor old = ref::upload_array(*backend_, negated(scores.old));
    const Tensor reference = ref::upload_array(*backend_, negated(scores.reference));
    const Tensor kept = ref::upload_array(*backend_, keep), drawn = ref::upload_array(*backend_, order);
    const Tensor stays = ref::upload_array(*backend_, scores.stays);
    Tensor advantages =
        ref::upload_array(*backend_, std::vector<float>(static_cast<size_t>(rows / kv_heads), advantage));
    Tensor loss(*backend_, DType::kF32, rows), kl(*backend_, DType::kF32, rows), clipped(*backend_, DType::kF32, rows);
    Tensor gradient(*backend_, DType::kF32, rows * kEntries);
    backend_->eviction_surrogate(
        {.cache = cache.view(),
         .scores = learning.slots<float>(kEntries),
         .old_scores = old.slots<float>(kEntries),
         .reference_scores = reference.slots<float>(kEntries),
         .keep = kept.slots<uint8_t>(kEntries),
         .law = scores.law,
         .order = drawn.slots<float>(kEntries),
         .stays = scores.stays.empty() ? Slots<const uint8_t>{} : stays.slots<uint8_t>(kEntries),
         .advantages = ref::data_of<float>(advantages),
         .clip = 0.2F,
         .kl_weight = scores.kl_weight,
         .loss = ref::data_of<float>(loss),
         .kl = ref::data_of<float>(kl),
         .clipped = ref::data_of<float>(clipped),
         .gradient = gradient.slots<float>(kEntries)});
    Result result{.gradient = ref::download_array<float>(gradient)};
    for (const float of_row : ref::download_array<float>(loss)) result.loss += of_row;
    return result;
  }

  const SafetensorsFile file_ = ref::open_packed("tests/data/foresight/expected.safetensors");
  const std::unique_ptr<Backend> backend_ = make_backend("cpu");
};

double largest_of(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

// Theirs is computed in f32: a log-softmax over 24 scores, its exponential, and a mean over 48 drops.
constexpr double kRoundings = 60;

// A mean over the rows and drops of a layer, added up over layers.
TEST_F(ReinforcedCode, LossAndGradientsAreItsSurrogates) {
  const Scores scores{.learning = read("rl.phi_new"),
                      .old = read("rl.phi_old"),
                      .reference = read("rl.phi_reference"),
                      .drop = read_i32("rl.drop")};
  const std::vector<float> advantages = read("rl.advantage"), losses = read("rl.loss"),
                           gradients = read("rl.phi_gradient");
  const double rows_a_layer = static_cast<double>(scores.drop.size()) / kDrawn / kLayers;
  for (size_t i = 0; i < advantages.size(); ++i) {
    const Result got = rate(scores, advantages[i]);
    ref::expect_close(got.loss / rows_a_layer, losses[i], {.roundings = kRoundings, .magnitude = 4});
    const auto count = std::ssize(scores.learning);
    const std::vector<float> want =
        negated(ref::slice(gradients, static_cast<int64_t>(i) * count, static_cast<int64_t>(count)));
    std::vector<double> mean;
    for (const float g : got.gradient) mean.push_back(g / rows_a_layer);
    ref::expect_close(mean, want, {.roundings = kRoundings, .magnitude = largest_of(want)});
  }
}

// Log-ratios beyond 10 on either side stay there, and teach nothing but by the KL.
TEST_F(ReinforcedCode, RatiosAreBoundAsThere) {
  const Scores scores{.learning = read("clamp.phi_new"),
                      .old = read("clamp.phi_old"),
                      .reference = read("clamp.phi_new"),
                      .drop = read_i32("clamp.drop")};
  const std::vector<float> losses = read("clamp.loss"), gradients = read("clamp.phi_gradient");
  for (const int i : {0, 1}) {
    const Result got = rate(scores, i == 0 ? -1.0F : 1.0F);
    ref::expect_close(got.loss, losses[static_cast<size_t>(i)],
                      {.roundings = kRoundings, .magnitude = std::abs(losses[static_cast<size_t>(i)])});
    const std::vector<float> want = negated(ref::slice(gradients, int64_t{i} * kEntries, kEntries));
    ref::expect_close(got.gradient, want, {.roundings = kRoundings, .magnitude = largest_of(want)});
  }
}

// With the weights that drew and an advantage of 1 the gradient is that of the draws' mean log-probability.
TEST_F(ReinforcedCode, LearnsFromTheExactLawOfADrawnOrder) {
  Scores scores{.learning = read("rl.phi_new"),
                .old = read("rl.phi_new"),
                .reference = read("rl.phi_new"),
                .drop = read_i32("rl.drop"),
                .law = DrawLaw::kPlackettLuce,
                .kl_weight = 0};
  scores.stays.assign(scores.learning.size(), 1);
  const std::vector<int32_t> candidates = read_i32("pl.candidates");
  for (size_t i = 0; i < candidates.size(); ++i) {
    scores.stays[i / (2 * kDrawn) * kEntries + static_cast<size_t>(candidates[i])] = 0;
  }
  const Result got = rate(scores, 1);
  std::vector<double> of_sum;
  for (const float g : got.gradient) of_sum.push_back(double{g} * kDrawn);
  const std::vector<float> want = read("pl.phi_gradient");  // of log π by φ: our loss is −log π, by −φ
  ref::expect_close(of_sum, want, {.roundings = kRoundings, .magnitude = largest_of(want)});
}

}  // namespace
}  // namespace kv
