#include <array>
#include <string>

#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/policy/baseline.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"
#include "sim/source/model_source.h"
#include "tests/bench/bench.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"

// The speed of whole passes and replays of the reference model. Read those on the CPU beside linear/2048x2048x2048 of
// the same run.

namespace kv::bench {
namespace {

constexpr int32_t kTokens = 4096;

struct Reference {
  explicit Reference(Backend& on) : backend(on) {
    const auto file = ref::open_packed("tests/data/reference/expected.safetensors");
    ids = file.read_i32(file.require("book0.input_ids"));
    ids.resize(kTokens);
  }

  Backend& backend;
  ModelFiles weights = load_model(ref::source_path("experiments/models/reference"));
  ModelSource source{backend, weights};
  std::vector<int32_t> ids;
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

void full_pass(Device& device, Samples& samples) {
  Reference reference(device.backend());
  const std::array<std::span<const int32_t>, 1> sequences = {reference.ids};
  samples.take({.flops = full_pass_flops(reference.weights.config(), kTokens)},
               [&] { compute_baseline(reference.backend, reference.source, sequences, {}); });
}

void oracle_pass(Device& device, Samples& samples) {
  Reference reference(device.backend());
  const std::array<std::span<const int32_t>, 1> sequences = {reference.ids};
  const BaselineNeeds needs{.statistics_block = 256, .block_sums = true};
  samples.take({}, [&] { compute_baseline(reference.backend, reference.source, sequences, needs); });
}

struct Replayed {
  std::string policy;
  std::vector<GivenParam> options{};
  size_t sequences = 1;  // at once, all alike
  std::string note{};    // follows the policy's name
};

// A replay at B = 1024, L = 256; the counters are shares of its time.
void replay_policy(Device& device, Samples& samples, const Replayed& replayed) {
  Reference reference(device.backend());
  const std::vector<std::span<const int32_t>> sequences(replayed.sequences, reference.ids);
  const std::vector<int32_t> lengths(replayed.sequences, kTokens);
  const Schedule schedule = decode_schedule(lengths, 1024, 256);
  Policy policy = make_policy(replayed.policy, replayed.options);
  Baseline baseline;
  if (policy.oracle()) {
    baseline =
        compute_baseline(reference.backend, reference.source, sequences, {.statistics_block = 256, .block_sums = true});
  }
  double total = 0, eviction = 0, oracle = 0;
  samples.take({}, [&] {
    const ReplayResult result = replay({.backend = reference.backend,
                                        .source = reference.source,
                                        .policy = policy,
                                        .sequences = sequences,
                                        .schedule = schedule,
                                        .budget = 1024,
                                        .interval = 256,
                                        .baseline = policy.oracle() ? &baseline : nullptr,
                                        .observers = {}});
    total += result.total_seconds - result.begin_seconds;
    eviction += result.observe_seconds + result.score_seconds + result.evict_seconds;
    oracle += result.begin_seconds;
  });
  samples.count("eviction_share", eviction / total);
  samples.count("oracle_share", oracle / total);
}

void add_replays(Device& device, const std::string& size, const std::vector<Replayed>& all) {
  for (const Replayed& replayed : all) {
    device.add(size + " " + replayed.policy + replayed.note,
               [replayed](Device& on, Samples& samples) { replay_policy(on, samples, replayed); });
  }
}

// On a GPU as many texts at once as a step of reinforcement has rollouts: what ForesightKV adds to a replay of H2O,
// which sums attention as well.
const Family kReplay{[](Device& device) {
  if (!device.is_cpu()) {
    return add_replays(device, "replay/128x4K",
                       {{"h2o", {}, 128},
                        {"foresight-kv", {{"weights", "initial"}}, 128},
                        {"foresight-kv", {{"weights", "initial"}, {"sums", "kept"}}, 128, " kept"}});
  }
  device.add("full_pass/4K", full_pass);
  device.add("full_pass/4K with oracle statistics", oracle_pass);
  add_replays(device, "replay/4K", {{"full"}, {"h2o"}, {"snapkv"}, {"r-kv"}, {"golden"}});
}};

}  // namespace
}  // namespace kv::bench
