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

// WG-KV's network on some keys.
class Network {
 public:
  Network(Device& device, const Gates& shape)
      : shape_(shape),
        heads_(heads_of(device).kv),
        activation_(device.activation()),
        before_(random_activations(device.backend(), keys(), 1)),
        after_(random_activations(device.backend(), keys(), 2)),
        weights_(random_activations(device.backend(), weights(), 3)),
        bias_(random_floats(device.backend(), units(), 4)),
        output_(random_floats(device.backend(), units(), 5)),
        output_bias_(random_floats(device.backend(), heads_, 6)),
        gates_(device.backend(), DType::kF32, gates()),
        log_gates_(device.backend(), DType::kF32, gates()) {}

  int64_t gates() const { return shape_.tokens * heads_; }
  int64_t keys() const { return gates() * shape_.head_dim; }
  int64_t units() const { return int64_t{heads_} * shape_.hidden; }
  int64_t weights() const { return units() * 2 * shape_.head_dim; }
  int heads() const { return heads_; }
  // Keys before and after RoPE, and each head's weights.
  double bytes() const { return activation_ * static_cast<double>(2 * keys() + weights()); }
  double flops() const { return 2.0 * static_cast<double>(shape_.tokens * weights()); }

  WriteGateArgs args() {
    return {.pre_rope_keys = before_.ref(),
            .keys = after_.ref(),
            .tokens = shape_.tokens,
            .kv_heads = heads_,
            .head_dim = shape_.head_dim,
            .hidden = shape_.hidden,
            .weights = weights_.ref(),
            .bias = bias_.ref().as<float>(),
            .output_weights = output_.ref().as<float>(),
            .output_bias = output_bias_.ref().as<float>(),
            .gates = gates_.ref().as<float>(),
            .log_gates = log_gates_.ref().as<float>()};
  }

 private:
  Gates shape_;
  int heads_;
  double activation_;
  Tensor before_, after_, weights_, bias_, output_, output_bias_, gates_, log_gates_;
};

void write_gate(Device& device, Samples& samples, const Gates& shape) {
  Network network(device, shape);
  WriteGateArgs args = network.args();
  args.log_gates = nullptr;
  samples.take({.bytes = network.bytes(), .flops = network.flops()}, [&] { device.backend().write_gate(args); });
}

// Reads what the op has read, and adds to as many gradients: of keys in their type, of weights in f32. The hidden layer
// comes once more, and two products lead from it to keys and to weights.
void write_gate_backward(Device& device, Samples& samples, const Gates& shape) {
  Backend& backend = device.backend();
  Network network(device, shape);
  const WriteGateArgs forward = network.args();
  backend.write_gate(forward);
  const Tensor by_log = random_floats(backend, network.gates(), 7),
               by_gate = random_floats(backend, network.gates(), 8);
  Tensor before = random_activations(backend, network.keys(), 9),
         after = random_activations(backend, network.keys(), 10);
  Tensor weights = random_floats(backend, network.weights(), 11), bias = random_floats(backend, network.units(), 12);
  Tensor output = random_floats(backend, network.units(), 13),
         output_bias = random_floats(backend, network.heads(), 14);
  const double gradients = 2 * (device.activation() * 2 * static_cast<double>(network.keys()) +
                                sizeof(float) * static_cast<double>(network.weights()));
  samples.take({.bytes = network.bytes() + gradients, .flops = 3 * network.flops()}, [&] {
    backend.write_gate_backward({.forward = forward,
                                 .log_gate_gradient = by_log.ref().as<float>(),
                                 .gate_gradient = by_gate.ref().as<float>(),
                                 .pre_rope_key_gradient = before.ref(),
                                 .key_gradient = after.ref(),
                                 .weight_gradient = weights.ref().as<float>(),
                                 .bias_gradient = bias.ref().as<float>(),
                                 .output_weight_gradient = output.ref().as<float>(),
                                 .output_bias_gradient = output_bias.ref().as<float>()});
  });
}

const std::vector<Gates> kCpuGates = {{"256 d64 96 units", 256, 64, 96}};
const std::vector<Gates> kCudaGates = {{"2048 d128 512 units", 2048, 128, 512},
                                       {"2048 d128 192 units", 2048, 128, 192},
                                       {"1 d128 512 units", 1, 128, 512},
                                       {"64 d128 192 units", 64, 128, 192}};

const std::vector<Gates> kCpuTrained = {{"4096 d64 96 units", 4096, 64, 96}};
const std::vector<Gates> kCudaTrained = {{"4096 d64 96 units", 4096, 64, 96},
                                         {"4096 d128 192 units", 4096, 128, 192},
                                         {"16384 d128 512 units", 16384, 128, 512}};

const Family kAdmission{[](Device& device) {
  for (const Gates& shape : device.pick(kCpuGates, kCudaGates)) {
    device.add("write_gate/" + shape.name, [shape](Device& on, Samples& samples) { write_gate(on, samples, shape); });
  }
  for (const Gates& shape : device.pick(kCpuTrained, kCudaTrained)) {
    device.add("write_gate_backward/" + shape.name,
               [shape](Device& on, Samples& samples) { write_gate_backward(on, samples, shape); });
  }
}};

}  // namespace
}  // namespace kv::bench
