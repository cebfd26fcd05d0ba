#include <benchmark/benchmark.h>

#include "kernels/backend.h"
#include "kernels/linear.h"
#include "tests/ref/backends.h"

namespace kv {

namespace {

// One product [rows, in] · [out, in]ᵀ through the same op as the model's layers.
void linear_bench(benchmark::State& state, int64_t rows, int64_t in, int64_t out) {
  const auto backend = make_backend("cpu");
  const Tensor input = ref::upload_array(*backend, ref::random_values(static_cast<size_t>(rows * in), 1));
  const Tensor weight = ref::upload_array(*backend, ref::random_values(static_cast<size_t>(out * in), 2));
  Tensor output(*backend, DType::f32, rows * out);
  for (auto _ : state) {
    backend->linear(
        {.input = input.ref(), .weight = weight.ref(), .output = output.ref(), .rows = rows, .in = in, .out = out});
    benchmark::ClobberMemory();
  }
  const auto flops = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  state.counters["FLOPs"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["weight_bytes"] =
      benchmark::Counter(static_cast<double>(4 * in * out), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

}  // namespace kv

using kv::linear_bench;
// The yardstick of the other benchmarks: the largest share of the machine's peak that a plain product gets here.
BENCHMARK_CAPTURE(linear_bench, gemm_2048, 2048, 2048, 2048)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear_bench, query_4096, 4096, 384, 512)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear_bench, key_4096, 4096, 384, 256)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear_bench, gate_4096, 4096, 384, 1024)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear_bench, down_4096, 4096, 1024, 384)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear_bench, gate_512, 512, 384, 1024)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(linear_bench, gate_16, 16, 384, 1024)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(linear_bench, gate_4, 4, 384, 1024)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(linear_bench, gate_1, 1, 384, 1024)->UseRealTime()->Unit(benchmark::kMicrosecond);
