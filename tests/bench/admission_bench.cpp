#include <string>
#include <utility>
#include <vector>

#include "kernels/write_gate.h"
#include "tests/bench/attention.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// What an admission asks of every token.

namespace kv::bench {
namespace {

struct Gates {
  std::string name;
  int64_t tokens;
  int head_dim;
  int hidden;
};

// WG-KV's network: keys before and after RoPE read once, and each head's weights.
void write_gate(Device& device, Samples& samples, const Gates& shape) {
  Backend& backend = device.backend();
  const int heads = heads_of(device).kv;
  const int64_t keys = shape.tokens * heads * shape.head_dim, units = int64_t{heads} * shape.hidden;
  const Tensor before = random_activations(backend, keys, 1), after = random_activations(backend, keys, 2);
  const Tensor weights = random_activations(backend, units * 2 * shape.head_dim, 3);
  const Tensor bias = random_floats(backend, units, 4), output = random_floats(backend, units, 5);
  const Tensor output_bias = random_floats(backend, heads, 6);
  Tensor gates(backend, DType::kF32, shape.tokens * heads);
  const double products = 2.0 * shape.head_dim * static_cast<double>(units) * static_cast<double>(shape.tokens);
  samples.take({.bytes = device.activation() * static_cast<double>(2 * keys + units * 2 * shape.head_dim),
                .flops = 2 * products},
               [&] {
                 backend.write_gate({.pre_rope_keys = before.ref(),
                                     .keys = after.ref(),
                                     .tokens = shape.tokens,
                                     .kv_heads = heads,
                                     .head_dim = shape.head_dim,
                                     .hidden = shape.hidden,
                                     .weights = weights.ref(),
                                     .bias = bias.ref().as<float>(),
                                     .output_weights = output.ref().as<float>(),
                                     .output_bias = output_bias.ref().as<float>(),
                                     .gates = gates.ref().as<float>()});
               });
}

const std::vector<Gates> kCpuGates = {{"256 d64 96 units", 256, 64, 96}};
const std::vector<Gates> kCudaGates = {{"2048 d128 512 units", 2048, 128, 512},
                                       {"2048 d128 192 units", 2048, 128, 192},
                                       {"1 d128 512 units", 1, 128, 512},
                                       {"64 d128 192 units", 64, 128, 192}};

const Family kAdmission{[](Device& device) {
  for (const Gates& shape : device.pick(kCpuGates, kCudaGates)) {
    device.add("write_gate/" + shape.name, [shape](Device& on, Samples& samples) { write_gate(on, samples, shape); });
  }
}};

}  // namespace
}  // namespace kv::bench
