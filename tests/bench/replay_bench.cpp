#include <benchmark/benchmark.h>

#include <filesystem>
#include <string>

#include "sim/baseline.h"
#include "sim/model_source.h"
#include "sim/replay.h"
#include "sim/safetensors.h"

// The speed claims, on the reference model. Read them beside gemm_2048 of the same run.

namespace kv {
namespace {

const std::filesystem::path kRoot = KV_SOURCE_DIR;

struct Bench {
  Bench() : weights(load_model(kRoot / "experiments/models/reference")) {
    const auto file = SafetensorsFile::open(kRoot / "tests/data/reference/expected.safetensors");
    ids = file.read_i32(file.require("book0.input_ids"));
    const auto more = file.read_i32(file.require("code0.input_ids"));
    ids.insert(ids.end(), more.begin(), more.end());
  }
  static Bench& get() {
    static Bench bench;
    return bench;
  }

  std::unique_ptr<Backend> backend = make_backend("cpu");
  ModelWeights weights;
  ModelSource source{*backend, weights};
  std::vector<int32_t> ids;  // 8192 tokens
};

// Multiply-adds counted as 2; causal pairs once.
double full_pass_flops(const ModelConfig& config, double tokens) {
  const double hidden = config.hidden_size;
  const double projections = hidden * (2.0 * config.q_size() + 2.0 * config.kv_size());
  const double mlp = 3.0 * hidden * config.intermediate_size;
  const double pairs = tokens * (tokens + 1) / 2;
  const double attention = 4.0 * config.q_size() * pairs;
  return config.layers * (2 * tokens * (projections + mlp) + attention) + 2 * tokens * hidden * config.vocab_size;
}

void full_pass(benchmark::State& state) {
  Bench& bench = Bench::get();
  const std::vector<int32_t> ids(bench.ids.begin(), bench.ids.begin() + state.range(0));
  const std::span<const int32_t> sequences[] = {ids};
  for (auto _ : state) benchmark::DoNotOptimize(compute_baseline(*bench.backend, bench.source, sequences, {}));
  const double flops = full_pass_flops(bench.weights.config, static_cast<double>(ids.size()));
  state.counters["FLOP/s"] =
      benchmark::Counter(flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(full_pass)->Arg(4096)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(3);

void baseline_with_oracle_statistics(benchmark::State& state) {
  Bench& bench = Bench::get();
  const std::vector<int32_t> ids(bench.ids.begin(), bench.ids.begin() + 4096);
  const std::span<const int32_t> sequences[] = {ids};
  const BaselineNeeds needs{.statistics_block = 256, .block_sums = true};
  for (auto _ : state) benchmark::DoNotOptimize(compute_baseline(*bench.backend, bench.source, sequences, needs));
}
BENCHMARK(baseline_with_oracle_statistics)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(3);

// One replay at B = 1024, L = 256 over 4096 tokens; the counters are shares of its wall time.
void replay_policy(benchmark::State& state, const std::string& name) {
  Bench& bench = Bench::get();
  const std::vector<int32_t> ids(bench.ids.begin(), bench.ids.begin() + 4096);
  const std::span<const int32_t> sequences[] = {ids};
  const int32_t length = 4096;
  const Schedule schedule = decode_schedule({&length, 1}, 1024, 256);
  Policy policy = make_policy(name, {});
  Baseline baseline;
  if (policy.oracle) {
    baseline = compute_baseline(*bench.backend, bench.source, sequences, {.statistics_block = 256, .block_sums = true});
  }
  double total = 0, eviction = 0, oracle = 0;
  for (auto _ : state) {
    const ReplayResult result = replay({.backend = *bench.backend,
                                        .source = bench.source,
                                        .policy = policy,
                                        .sequences = sequences,
                                        .schedule = schedule,
                                        .budget = 1024,
                                        .interval = 256,
                                        .baseline = policy.oracle ? &baseline : nullptr,
                                        .observers = {}});
    total += result.total_seconds - result.begin_seconds;
    eviction += result.observe_seconds + result.score_seconds + result.evict_seconds;
    oracle += result.begin_seconds;
  }
  state.counters["eviction_share"] = eviction / total;
  state.counters["oracle_share"] = oracle / total;
}
BENCHMARK_CAPTURE(replay_policy, full, "full")->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(2);
BENCHMARK_CAPTURE(replay_policy, h2o, "h2o")->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(2);
BENCHMARK_CAPTURE(replay_policy, snapkv, "snapkv")->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(2);
BENCHMARK_CAPTURE(replay_policy, r_kv, "r-kv")->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(2);
BENCHMARK_CAPTURE(replay_policy, golden, "golden")->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(2);

}  // namespace
}  // namespace kv
