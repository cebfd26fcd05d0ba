#include <benchmark/benchmark.h>

#include <numeric>

#include "kernels/backend.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/silu_mul.h"
#include "kernels/token_loss.h"
#include "tests/ref/backends.h"

namespace kv {

namespace {

// Sizes of the reference model over 4096 tokens.
constexpr int64_t kTokens = 4096;
constexpr int64_t kWidth = 384;

benchmark::Counter rate(double amount) { return {amount, benchmark::Counter::kIsIterationInvariantRate}; }

void token_loss_4096(benchmark::State& state) {
  constexpr int64_t kVocab = 8192;
  const auto backend = make_backend("cpu");
  const Tensor hidden = ref::upload_array(*backend, ref::random_values(kTokens * kWidth, 1));
  const Tensor weight = ref::upload_array(*backend, ref::random_values(kVocab * kWidth, 2));
  std::vector<int32_t> ids(kTokens);
  std::iota(ids.begin(), ids.end(), 0);
  const Tensor targets = ref::upload_array(*backend, ids);
  Tensor nll(*backend, DType::f32, kTokens);
  Tensor entropy(*backend, DType::f32, kTokens);
  Tensor argmax(*backend, DType::i32, kTokens);
  for (auto _ : state) {
    backend->token_loss({.hidden = hidden.ref(),
                         .weight = weight.ref(),
                         .targets = targets.ref().as<int32_t>(),
                         .nll = ref::data_of<float>(nll),
                         .entropy = ref::data_of<float>(entropy),
                         .argmax = ref::data_of<int32_t>(argmax),
                         .rows = kTokens,
                         .width = kWidth,
                         .vocab = kVocab});
    benchmark::ClobberMemory();
  }
  state.counters["FLOPs"] = rate(2.0 * kTokens * kWidth * kVocab);
}

void rms_norm_4096(benchmark::State& state) {
  const auto backend = make_backend("cpu");
  const Tensor input = ref::upload_array(*backend, ref::random_values(kTokens * kWidth, 1));
  const Tensor weight = ref::upload_array(*backend, ref::random_values(kWidth, 2));
  Tensor output(*backend, DType::f32, kTokens * kWidth);
  for (auto _ : state) {
    backend->rms_norm(
        {.input = input.ref(), .weight = weight.ref(), .output = output.ref(), .rows = kTokens, .width = kWidth});
    benchmark::ClobberMemory();
  }
  state.counters["bytes"] = rate(8.0 * kTokens * kWidth);
}

void rope_4096(benchmark::State& state) {
  constexpr int kHeads = 8;
  constexpr int kDim = 64;
  const auto backend = make_backend("cpu");
  const Tensor input = ref::upload_array(*backend, ref::random_values(kTokens * kHeads * kDim, 1));
  std::vector<int32_t> order(kTokens);
  std::iota(order.begin(), order.end(), 0);
  const Tensor positions = ref::upload_array(*backend, order);
  const Tensor inv_freq = ref::upload_array(*backend, std::vector<float>(kDim / 2, 0.1f));
  Tensor output(*backend, DType::f32, kTokens * kHeads * kDim);
  for (auto _ : state) {
    backend->rope({.input = input.ref(),
                   .positions = positions.ref().as<int32_t>(),
                   .inv_freq = inv_freq.ref().as<float>(),
                   .output = output.ref(),
                   .tokens = kTokens,
                   .heads = kHeads,
                   .head_dim = kDim});
    benchmark::ClobberMemory();
  }
  state.counters["bytes"] = rate(8.0 * kTokens * kHeads * kDim);
}

void silu_mul_4096(benchmark::State& state) {
  constexpr int64_t kCount = kTokens * 1024;
  const auto backend = make_backend("cpu");
  const Tensor gate = ref::upload_array(*backend, ref::random_values(kCount, 1));
  const Tensor up = ref::upload_array(*backend, ref::random_values(kCount, 2));
  Tensor output(*backend, DType::f32, kCount);
  for (auto _ : state) {
    backend->silu_mul({.gate = gate.ref(), .up = up.ref(), .output = output.ref(), .count = kCount});
    benchmark::ClobberMemory();
  }
  state.counters["bytes"] = rate(12.0 * kCount);
}

}  // namespace

}  // namespace kv

using namespace kv;
BENCHMARK(token_loss_4096)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(rms_norm_4096)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(rope_4096)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(silu_mul_4096)->UseRealTime()->Unit(benchmark::kMillisecond);
