#include <string>
#include <vector>

#include "kernels/retention_gate.h"
#include "tests/bench/attention.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// What global retention asks of every token, and of its training.

namespace kv::bench {
namespace {

struct Gates {
  std::string name;
  int64_t tokens, width;
  int hidden;
};

// 003's gates of a layer, whose heads share two hidden layers.
struct Layer {
  Layer(Device& device, const Gates& shape)
      : inputs(random_activations(device.backend(), shape.tokens * shape.width, 1)),
        input_weights(random_activations(device.backend(), shape.hidden * shape.width, 2)),
        hidden_weights(random_activations(device.backend(), int64_t{shape.hidden} * shape.hidden, 3)),
        biases(random_floats(device.backend(), shape.hidden, 4)),
        output_weights(random_floats(device.backend(), int64_t{heads_of(device).kv} * shape.hidden, 5)),
        output_bias(random_floats(device.backend(), heads_of(device).kv, 6)),
        log_retention(device.backend(), DType::kF32, shape.tokens * heads_of(device).kv) {
    args = {.inputs = inputs.ref(),
            .tokens = shape.tokens,
            .width = shape.width,
            .kv_heads = heads_of(device).kv,
            .hidden = shape.hidden,
            .input_weights = input_weights.ref(),
            .input_bias = data(biases),
            .hidden_weights = hidden_weights.ref(),
            .hidden_bias = data(biases),
            .output_weights = data(output_weights),
            .output_bias = data(output_bias),
            .log_retention = data(log_retention)};
    const auto units = static_cast<double>(shape.hidden), width = static_cast<double>(shape.width),
               tokens = static_cast<double>(shape.tokens);
    work = {.bytes = device.activation() * (tokens * width + units * (width + units)),
            .flops = 2 * tokens * units * (width + units + args.kv_heads)};
  }
  static float* data(Tensor& tensor) { return tensor.ref().as<float>(); }

  Tensor inputs, input_weights, hidden_weights, biases, output_weights, output_bias, log_retention;
  RetentionGateArgs args;
  Work work;  // of the way there
};

void forward(Device& device, Samples& samples, const Gates& shape) {
  const Layer layer(device, shape);
  samples.take(layer.work, [&] { device.backend().retention_gate(layer.args); });
}

// Each product is computed once more, and goes back into its weights and what it read.
void backward(Device& device, Samples& samples, const Gates& shape) {
  Layer layer(device, shape);
  Backend& backend = device.backend();
  backend.retention_gate(layer.args);
  const int64_t units = shape.hidden, heads = layer.args.kv_heads;
  const Tensor by = random_floats(backend, shape.tokens * heads, 7);
  Tensor of_inputs = random_activations(backend, shape.tokens * shape.width, 8);
  Tensor of_input_weights = random_floats(backend, units * shape.width, 9),
         of_hidden_weights = random_floats(backend, units * units, 10),
         of_input_bias = random_floats(backend, units, 11), of_hidden_bias = random_floats(backend, units, 12),
         of_output_weights = random_floats(backend, heads * units, 13),
         of_output_bias = random_floats(backend, heads, 14);
  samples.take({.bytes = 3 * layer.work.bytes, .flops = 3 * layer.work.flops}, [&] {
    backend.retention_gate_backward({.forward = layer.args,
                                     .log_retention_gradient = by.ref().as<float>(),
                                     .input_gradient = of_inputs.ref(),
                                     .input_weight_gradient = Layer::data(of_input_weights),
                                     .input_bias_gradient = Layer::data(of_input_bias),
                                     .hidden_weight_gradient = Layer::data(of_hidden_weights),
                                     .hidden_bias_gradient = Layer::data(of_hidden_bias),
                                     .output_weight_gradient = Layer::data(of_output_weights),
                                     .output_bias_gradient = Layer::data(of_output_bias)});
  });
}

const std::vector<Gates> kCpuGates = {{"256x576 64 units", 256, 576, 64}, {"1x576 64 units", 1, 576, 64}};
const std::vector<Gates> kCudaGates = {{"16384x2560 512 units", 16384, 2560, 512},
                                       {"2048x4096 512 units", 2048, 4096, 512},
                                       {"1x2560 512 units", 1, 2560, 512}};

const Family kRetention{[](Device& device) {
  for (const Gates& shape : device.pick(kCpuGates, kCudaGates)) {
    device.add("retention_gate/" + shape.name, [shape](Device& on, Samples& samples) { forward(on, samples, shape); });
    if (shape.tokens == 1) continue;
    device.add("retention_gate_backward/" + shape.name,
               [shape](Device& on, Samples& samples) { backward(on, samples, shape); });
  }
}};

}  // namespace
}  // namespace kv::bench
