#include <fmt/format.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/model/named_models.h"
#include "sim/replay/generate.h"
#include "tests/bench/bench.h"

// A whole decode step of a real model's shape, as `protocol: latency` times it (harness/protocols/latency_runner.h):
// over the full cache, or over what WG-KV's gates let into it, their network, the sweeps and all.

namespace kv::bench {
namespace {

struct Shape {
  std::string name;
  std::string model;
  int batch;
  int32_t length;
  double dropped = 0;  // share of the tokens that an admission turns away, by a draw; 0: there is none
  double expand = 0;   // hidden units of a gate's network over the head's dimension
};

constexpr int kSamples = 10;
constexpr int kSteps = 16;  // of a sample, the last of them at the full length
constexpr int kWindow = 256;

Policy policy_of(const Shape& shape) {
  if (shape.dropped == 0) return make_policy("full", {});
  SlotChoice gates{"wg-kv", {{"drop", fmt::format("{}", shape.dropped)}, {"expand", fmt::format("{}", shape.expand)}}};
  return make_policy("full", {}, {.admission = std::move(gates)});
}

double gate_bytes(const ModelConfig& config, const Shape& shape, double activation) {
  return activation * config.layers * config.kv_size() * shape.expand * 2 * config.head_dim;
}

// What a step has to read: every weight but the rows of the embedding that no token of the batch asks for, and all keys
// and values that are there.
Work work_of(const Device& device, const ModelSource& source, const ModelConfig& config, const Shape& shape) {
  const double activation = device.activation();
  const double table = activation * config.vocab_size * config.hidden_size;  // of a tied model it is the last product's
  const double weights = static_cast<double>(source.weight_bytes()) - (config.tie_word_embeddings ? 0 : table);
  const double older = shape.length - 0.5 * kSteps - kWindow;
  const double entries = shape.batch * config.layers * (kWindow + (1 - shape.dropped) * older);
  const double pairs = entries * config.q_size();
  const double gates = shape.dropped > 0 ? gate_bytes(config, shape, activation) : 0;
  return {.bytes = weights + gates + 2 * activation * entries * config.kv_size(),
          .flops = 2 * shape.batch * weights / activation + 4 * pairs};
}

void decode_step(Device& device, Samples& samples, const Shape& shape) {
  const ModelConfig config = find_named_model(shape.model).parse();
  ModelSource source(device.backend(), RandomWeights(config, 1));
  Policy policy = policy_of(shape);
  const std::vector<int32_t> ids(static_cast<size_t>(shape.length - kSteps), 1);
  const std::vector<std::span<const int32_t>> prompts(static_cast<size_t>(shape.batch), ids);
  const auto step = [&] {
    return generate({.backend = device.backend(),
                     .source = source,
                     .policy = policy,
                     .prompts = prompts,
                     .filled = static_cast<int32_t>(ids.size()) - 1,
                     .max_new_tokens = kSteps})
        .step_seconds();
  };
  step();  // warm-up
  std::vector<double> seconds;
  for (int s = 0; s < kSamples; ++s) seconds.push_back(step());
  samples.add(work_of(device, source, config, shape), seconds);
}

const std::vector<Shape> kShapes = {
    {"decode_step/1x32K llama-3.1-8b", "llama-3.1-8b", 1, 32 * 1024},
    {"decode_step/1x200K llama-3.1-8b 75 % dropped", "llama-3.1-8b", 1, 200 * 1000, 0.75, 4},
    {"decode_step/1x200K qwen3-4b 75 % dropped", "qwen3-4b", 1, 200 * 1000, 0.75, 1.5},
    {"decode_step/64x2048 qwen3-4b", "qwen3-4b", 64, 2048},
};

const Family kGenerate{[](Device& device) {
  if (device.is_cpu()) return;  // the shapes are too large for it
  for (const Shape& shape : kShapes) {
    device.add(shape.name, [shape](Device& on, Samples& samples) { decode_step(on, samples, shape); });
  }
}};

}  // namespace
}  // namespace kv::bench
