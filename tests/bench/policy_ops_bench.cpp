// What one eviction event costs: 8 layers x 4 KV heads of 1280 entries (budget 1024, interval 256), head_dim 64.

#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

#include "kernels/backend.h"
#include "kernels/expected_attention.h"
#include "kernels/key_difference.h"
#include "kernels/paged.h"
#include "kernels/redundancy.h"
#include "kernels/select_top.h"
#include "kernels/tensor.h"
#include "kernels/window_attention.h"

namespace {

constexpr int64_t kRows = 32;
constexpr int64_t kEntries = 1280;
constexpr int64_t kPages = kEntries / kv::kPageTokens;
constexpr int kKvHeads = 4;
constexpr int kQHeads = 8;
constexpr int kDim = 64;
constexpr int64_t kSequences = kRows / kKvHeads;

std::vector<float> uniform(int64_t count, uint32_t seed) {
  std::vector<float> values(count);
  uint32_t state = seed * 2654435761u + 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) / 2147483648.0f;
  }
  return values;
}

template <class T>
kv::Tensor upload(kv::Backend& backend, const std::vector<T>& values) {
  kv::Tensor tensor(backend, kv::DTypeOf<T>::value, static_cast<int64_t>(values.size()));
  tensor.upload(values.data(), values.size() * sizeof(T));
  return tensor;
}

// `shared` pulls the keys of a row towards a common direction: 0 leaves hardly any pair similar, 1.5 nearly all.
struct Cache {
  kv::Tensor keys, values, positions, pages, lengths;

  Cache(kv::Backend& backend, float shared) {
    std::vector<float> data = uniform(kRows * kEntries * kDim, 1);
    const std::vector<float> common = uniform(kRows * kDim, 2);
    std::vector<int32_t> position(kRows * kEntries), table(kRows * kPages);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t slot = 0; slot < kEntries; ++slot) {
        position[row * kEntries + slot] = static_cast<int32_t>(slot);
        for (int d = 0; d < kDim; ++d) data[(row * kEntries + slot) * kDim + d] += shared * common[row * kDim + d];
      }
    }
    for (int64_t page = 0; page < kRows * kPages; ++page) table[page] = static_cast<int32_t>(page);
    keys = upload(backend, data);
    values = upload(backend, uniform(kRows * kEntries * kDim, 3));
    positions = upload(backend, position);
    pages = upload(backend, table);
    lengths = upload(backend, std::vector<int32_t>(kRows, kEntries));
  }

  kv::PagedView view() {
    return {.keys = keys.ref(),
            .values = values.ref(),
            .positions = positions.ref().as<int32_t>(),
            .page_table = pages.ref().as<int32_t>(),
            .lengths = lengths.ref().as<int32_t>(),
            .rows = kRows,
            .max_pages = kPages,
            .max_length = kEntries,
            .kv_heads = kKvHeads,
            .head_dim = kDim};
  }
};

using Mode = kv::WindowAttentionArgs::Mode;

void window_attention(benchmark::State& state, Mode mode) {
  const auto backend = kv::make_backend("cpu");
  const int window = static_cast<int>(state.range(0));
  Cache cache(*backend, 0);
  kv::Tensor queries = upload(*backend, uniform(kSequences * window * kQHeads * kDim, 4));
  kv::Tensor scores(*backend, kv::DType::f32, kRows * kQHeads / kKvHeads * kEntries);
  for (auto _ : state) {
    backend->window_attention({.mode = mode,
                               .queries = queries.ref(),
                               .cache = cache.view(),
                               .window = window,
                               .q_heads = kQHeads,
                               .scale = 0.125f,
                               .scores = scores.ref().as<float>(),
                               .pitch = kEntries});
  }
}
BENCHMARK_CAPTURE(window_attention, per_query_head, Mode::per_query_head)
    ->Arg(8)
    ->Arg(32)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(window_attention, group_max_older, Mode::group_max_older)->Arg(8)->Unit(benchmark::kMillisecond);

void redundancy(benchmark::State& state) {
  const auto backend = kv::make_backend("cpu");
  Cache cache(*backend, static_cast<float>(state.range(0)) / 100);
  kv::Tensor scores(*backend, kv::DType::f32, kRows * kEntries);
  for (auto _ : state) {
    backend->redundancy({.cache = cache.view(), .scores = scores.ref().as<float>(), .pitch = kEntries});
  }
}
// Shared direction in hundredths: no similar pairs (every tile is needed), about half, nearly all.
BENCHMARK(redundancy)->Arg(0)->Arg(50)->Arg(65)->Arg(100)->Arg(150)->Unit(benchmark::kMillisecond);

void key_difference(benchmark::State& state) {
  const auto backend = kv::make_backend("cpu");
  Cache cache(*backend, 0.5f);
  kv::Tensor scores(*backend, kv::DType::f32, kRows * kEntries);
  for (auto _ : state) {
    backend->key_difference({.cache = cache.view(), .scores = scores.ref().as<float>(), .pitch = kEntries});
  }
}
BENCHMARK(key_difference)->Unit(benchmark::kMillisecond);

void expected_attention(benchmark::State& state) {
  const auto backend = kv::make_backend("cpu");
  Cache cache(*backend, 0);
  // Moments of 1000 independent uniform queries: mean 0, covariance 1/3.
  std::vector<double> sums(kSequences * kQHeads * kDim), products(kSequences * kQHeads * kDim * kDim);
  for (int64_t i = 0; i < static_cast<int64_t>(sums.size()); ++i) products[i * kDim + i % kDim] = 1000.0 / 3;
  std::vector<float> inv_freq(kDim / 2);
  for (int d = 0; d < kDim / 2; ++d) inv_freq[d] = std::pow(10000.0f, -2.0f * static_cast<float>(d) / kDim);
  kv::Tensor counts = upload(*backend, std::vector<int32_t>(kSequences, 1000));
  kv::Tensor next = upload(*backend, std::vector<int32_t>(kSequences, kEntries));
  kv::Tensor frequencies = upload(*backend, inv_freq);
  kv::Tensor scores(*backend, kv::DType::f32, kRows * kEntries);
  for (auto _ : state) {
    backend->expected_attention({.cache = cache.view(),
                                 .sums = sums.data(),
                                 .products = products.data(),
                                 .counts = counts.ref().as<int32_t>(),
                                 .next_position = next.ref().as<int32_t>(),
                                 .inv_freq = frequencies.ref().as<float>(),
                                 .q_heads = kQHeads,
                                 .scores = scores.ref().as<float>(),
                                 .pitch = kEntries});
  }
}
BENCHMARK(expected_attention)->Unit(benchmark::kMillisecond);

void select_top(benchmark::State& state) {
  const auto backend = kv::make_backend("cpu");
  Cache cache(*backend, 0);
  kv::Tensor scores = upload(*backend, uniform(kRows * kEntries, 5)),
             ties = upload(*backend, uniform(kRows * kEntries, 6));
  kv::Tensor counts = upload(*backend, std::vector<int32_t>(kRows, 1024));
  kv::Tensor keep(*backend, kv::DType::u8, kRows * kEntries);
  for (auto _ : state) {
    backend->select_top({.cache = cache.view(),
                         .scores = scores.ref().as<float>(),
                         .ties = ties.ref().as<float>(),
                         .pitch = kEntries,
                         .counts = counts.ref().as<int32_t>(),
                         .sinks = 4,
                         .recent = 8,
                         .keep = keep.ref().as<uint8_t>()});
  }
}
BENCHMARK(select_top)->Unit(benchmark::kMillisecond);

}  // namespace
