#include <benchmark/benchmark.h>

#include "kernels/append.h"
#include "kernels/attend.h"
#include "kernels/backend.h"
#include "tests/ref/paged_cache.h"

namespace kv {

namespace {

enum class Columns : uint8_t { none, sums, sums_and_max };

// The reference model's attention: 8 query heads over 4 KV heads of 64, `count` new tokens at the end of `length`.
void attend_bench(benchmark::State& state, int32_t length, int32_t count, Columns columns) {
  constexpr int kQueryHeads = 8;
  constexpr int kKvHeads = 4;
  constexpr int kDim = 64;
  const auto backend = make_backend("cpu");
  const ref::PagedCache cache(*backend, ref::random_rows(std::vector<int32_t>(kKvHeads, length), kKvHeads, kDim, 1));
  const Tensor queries = ref::upload_array(*backend, ref::random_values(size_t{kQueryHeads} * count * kDim, 2));
  Tensor output(*backend, DType::f32, int64_t{kQueryHeads} * count * kDim);
  Tensor sums(*backend, DType::f32, int64_t{kQueryHeads} * length);
  Tensor maxima(*backend, DType::f32, int64_t{kQueryHeads} * length);
  const Segment segment{.count = count, .first_position = length - count};
  for (auto _ : state) {
    backend->attend({.queries = queries.ref(),
                     .cache = cache.view(),
                     .segments = &segment,
                     .segment_count = 1,
                     .max_count = count,
                     .output = output.ref(),
                     .column_sums = columns == Columns::none ? nullptr : ref::data_of<float>(sums),
                     .column_max = columns == Columns::sums_and_max ? ref::data_of<float>(maxima) : nullptr,
                     .column_pitch = length,
                     .q_heads = kQueryHeads,
                     .scale = 0.125f});
    benchmark::ClobberMemory();
  }
  // Two products of 2·D operations for each causal pair, counted once.
  const double pairs = 0.5 * count * (2.0 * length - count + 1);
  state.counters["FLOPs"] =
      benchmark::Counter(pairs * kQueryHeads * 4 * kDim, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["cache_bytes"] =
      benchmark::Counter(8.0 * length * kKvHeads * kDim, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

}  // namespace kv

using kv::attend_bench;
using kv::Columns;
BENCHMARK_CAPTURE(attend_bench, prefill_4096, 4096, 4096, Columns::none)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(attend_bench, prefill_4096_sums, 4096, 4096, Columns::sums)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(attend_bench, prefill_4096_sums_and_max, 4096, 4096, Columns::sums_and_max)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(attend_bench, prefill_512, 512, 512, Columns::none)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(attend_bench, block_128_of_4096_sums, 4096, 128, Columns::sums)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(attend_bench, decode_4096, 4096, 1, Columns::none)->UseRealTime()->Unit(benchmark::kMicrosecond);
