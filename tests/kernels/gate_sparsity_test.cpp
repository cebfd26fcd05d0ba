#include "kernels/gate_sparsity.h"

#include <algorithm>

#include "tests/support/close.h"
#include "tests/support/threads.h"
#include "tests/support/token_block.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, GateSparsity);

struct Result {
  std::vector<float> loss, gradient;
  std::vector<int32_t> admitted;
  bool operator==(const Result&) const = default;
};

constexpr float kThreshold = 0.5F;

// The gradient is added to `start` in every place.
Result sparsity(Backend& backend, const ref::TokenBlock& block, const std::vector<float>& gates, int window,
                float weight = 1, float start = 0) {
  const ref::UploadedBlock uploaded(backend, block);
  Tensor given = ref::upload_array(backend, gates), loss(backend, DType::kF32, 1);
  Tensor gradient = ref::upload_array(backend, std::vector<float>(gates.size(), start));
  Tensor admitted(backend, DType::kI32, 1);
  backend.gate_sparsity({.shape = uploaded.shape(),
                         .gates = ref::data_of<float>(given),
                         .window = window,
                         .weight = weight,
                         .threshold = kThreshold,
                         .loss = ref::data_of<float>(loss),
                         .admitted = ref::data_of<int32_t>(admitted),
                         .gradient = ref::data_of<float>(gradient)});
  return {ref::download_array<float>(loss), ref::download_array<float>(gradient),
          ref::download_array<int32_t>(admitted)};
}

// What one gate costs of which `queries` see its token.
double cost(double gate, int64_t queries, int window) {
  const double windowed = std::min(1.0, static_cast<double>(window) / static_cast<double>(queries));
  return windowed + (1 - windowed) * (gate + gate * (1 - gate));
}

TEST_P(GateSparsity, CountsWhatTheWindowDoesNotServe) {
  KV_BACKEND_OR_SKIP(backend);
  // T = 6, W = 2: o = 1/3, 2/5, 1/2, 2/3, 1, 1 and g + g (1 − g) = 0.99, 0.19, 0.75, 0, 1, 0.36.
  const ref::TokenBlock block{.segments = {{.count = 6}}, .tokens = 6};
  const std::vector<float> gates = {0.9F, 0.1F, 0.5F, 0, 1, 0.2F};
  const Result code = sparsity(*backend, block, gates, 2);
  ref::expect_close(code.loss[0], (1.0 / 3 + 0.66 + 0.4 + 0.114 + 0.5 + 0.375 + 2.0 / 3 + 0 + 1 + 1) / 6,
                    {.roundings = 2});
  // (1 − o) · 2 (1 − g) / 6; the last two tokens pull at nothing.
  ref::expect_close(code.gradient, std::vector<double>{0.4 / 18, 0.18, 0.5 / 6, 2.0 / 18, 0, 0}, {.roundings = 2});
  // The paper's, without a window.
  const Result paper = sparsity(*backend, block, gates, 0);
  EXPECT_EQ(paper.admitted[0], 2);  // of 0.9, 0.1, 0.5, 0, 1, 0.2: above, not at the threshold
  ref::expect_close(paper.loss[0], (0.99 + 0.19 + 0.75 + 0 + 1 + 0.36) / 6, {.roundings = 2});
  ref::expect_close(paper.gradient, std::vector<double>{0.2 / 6, 0.3, 1.0 / 6, 2.0 / 6, 0, 1.6 / 6}, {.roundings = 2});
}

std::vector<float> gates_of(const ref::TokenBlock& block) {
  std::vector<float> gates = ref::random_values(block.elements(), 1);
  for (float& gate : gates) gate = 0.5F + 0.5F * gate;
  return gates;
}

TEST_P(GateSparsity, AgreesWithDoubleArithmeticAndItsSlope) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr float kWeight = 0.04F, kStart = 0.125F;
  for (const ref::TokenBlock& block : ref::token_blocks()) {
    const std::vector<float> gates = gates_of(block);
    for (const int window : {0, 1, 256, 2000}) {
      const Result got = sparsity(*backend, block, gates, window, kWeight, kStart);
      const auto elements = static_cast<double>(std::max<int64_t>(1, block.elements()));
      double loss = 0;
      int32_t admitted = 0;
      block.for_places([&](size_t place, const Segment& segment, int64_t s) {
        admitted += gates[place] > kThreshold;
        const int64_t queries = segment.count - s;
        loss += cost(gates[place], queries, window) / elements;
        // The loss is of second degree, so a difference over any step is its slope.
        const double slope = kWeight *
                             (cost(gates[place] + 0.5, queries, window) - cost(gates[place] - 0.5, queries, window)) /
                             elements;
        // 1 − g, the factor before it and their product are rounded, and their sum with the start.
        ASSERT_TRUE(ref::is_close(got.gradient[place], kStart + slope,
                                  {.roundings = 2, .magnitude = kStart + 2 * kWeight / elements}));
      });
      // 1 − g is rounded; all else is double, and rounded once.
      ref::expect_close(got.loss[0], loss, {.roundings = 2});
      EXPECT_EQ(got.admitted[0], admitted);
    }
  }
}

TEST_P(GateSparsity, ThreadsDoNotChangeABit) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::TokenBlock block = ref::token_blocks()[3];
  const auto with = [&](int threads) {
    const ref::Threads limit(threads);
    return sparsity(*backend, block, gates_of(block), 256);
  };
  EXPECT_EQ(with(1), with(2));
}

}  // namespace
}  // namespace kv
