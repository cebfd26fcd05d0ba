#include <string>

#include "kernels/linear.h"
#include "kernels/token_loss.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// Products with weights: the layers of Llama-3.1-8B in prefill, batched and single decode; on the CPU the reference
// model's.

namespace kv::bench {
namespace {

struct Shape {
  std::string name;
  int64_t rows, in, out;
};

// input [rows, in] · weight [out, in]ᵀ, or the way back.
Work work_of(const Shape& shape, double activation) {
  const auto rows = static_cast<double>(shape.rows), in = static_cast<double>(shape.in),
             out = static_cast<double>(shape.out);
  return {.bytes = activation * (rows * in + out * in + rows * out), .flops = 2 * rows * in * out};
}

void run(Device& device, Samples& samples, const Shape& shape) {
  Backend& backend = device.backend();
  const Tensor input = random_activations(backend, shape.rows * shape.in, 1);
  const Tensor weight = random_activations(backend, shape.out * shape.in, 2);
  Tensor output(backend, backend.activation_type(), shape.rows * shape.out);
  samples.take(work_of(shape, device.activation()), [&] {
    backend.linear({.input = input.ref(),
                    .products = {{.weight = weight.ref(), .output = output.ref(), .out = shape.out}},
                    .rows = shape.rows,
                    .in = shape.in});
  });
}

// Queries, keys and values of one row, as a step's projections are.
void project(Device& device, Samples& samples, const Shape& shape) {
  Backend& backend = device.backend();
  const int64_t outs[] = {shape.out, shape.out / 4, shape.out / 4};
  const Tensor input = random_activations(backend, shape.rows * shape.in, 1);
  LinearArgs args{.input = input.ref(), .rows = shape.rows, .in = shape.in};
  std::vector<Tensor> weights, outputs;
  Work work;
  for (size_t p = 0; p < std::size(outs); ++p) {
    weights.push_back(random_activations(backend, outs[p] * shape.in, 2 + p));
    outputs.emplace_back(backend, backend.activation_type(), shape.rows * outs[p]);
    args.products[p] = {.weight = weights[p].ref(), .output = outputs[p].ref(), .out = outs[p]};
    const Work of = work_of({shape.name, shape.rows, shape.in, outs[p]}, device.activation());
    work.bytes += of.bytes, work.flops += of.flops;
  }
  samples.take(work, [&] { backend.linear(args); });
}

void run_backward(Device& device, Samples& samples, const Shape& shape) {
  Backend& backend = device.backend();
  const Tensor output_gradient = random_activations(backend, shape.rows * shape.out, 1);
  const Tensor weight = random_activations(backend, shape.out * shape.in, 2);
  Tensor input_gradient(backend, backend.activation_type(), shape.rows * shape.in);
  samples.take(work_of(shape, device.activation()), [&] {
    backend.linear_backward({.output_gradient = output_gradient.ref(),
                             .weight = weight.ref(),
                             .input_gradient = input_gradient.ref(),
                             .rows = shape.rows,
                             .in = shape.in,
                             .out = shape.out});
  });
}

// The loss of every token: the product with the vocabulary, whose logits must not count as traffic.
void run_loss(Device& device, Samples& samples, const Shape& shape) {
  Backend& backend = device.backend();
  const Tensor hidden = random_activations(backend, shape.rows * shape.in, 1);
  const Tensor weight = random_activations(backend, shape.out * shape.in, 2);
  const Tensor targets = counting(backend, shape.rows);
  Tensor nll(backend, DType::kF32, shape.rows), entropy(backend, DType::kF32, shape.rows);
  Tensor argmax(backend, DType::kI32, shape.rows);
  Work work = work_of(shape, device.activation());
  work.bytes -= device.activation() * static_cast<double>(shape.rows * shape.out);
  samples.take(work, [&] {
    backend.token_loss({.hidden = hidden.ref(),
                        .weight = weight.ref(),
                        .targets = targets.ref().as<int32_t>(),
                        .nll = nll.ref().as<float>(),
                        .entropy = entropy.ref().as<float>(),
                        .argmax = argmax.ref().as<int32_t>(),
                        .rows = shape.rows,
                        .width = shape.in,
                        .vocab = shape.out});
  });
}

const std::vector<Shape> kCpu = {
    {"linear/2048x2048x2048", 2048, 2048, 2048},  // the yardstick of the other benchmarks
    {"linear/4096x384x512", 4096, 384, 512},     {"linear/4096x384x256", 4096, 384, 256},
    {"linear/4096x384x1024", 4096, 384, 1024},   {"linear/4096x1024x384", 4096, 1024, 384},
    {"linear/512x384x1024", 512, 384, 1024},     {"linear/16x384x1024", 16, 384, 1024},
    {"linear/4x384x1024", 4, 384, 1024},         {"linear/1x384x1024", 1, 384, 1024},
};
// rows x in x out
const std::vector<Shape> kCuda = {
    {"linear/8192x8192x8192", 8192, 8192, 8192},   {"linear/8192x4096x4096", 8192, 4096, 4096},
    {"linear/8192x4096x1024", 8192, 4096, 1024},   {"linear/8192x4096x14336", 8192, 4096, 14336},
    {"linear/8192x14336x4096", 8192, 14336, 4096}, {"linear/96x4096x14336", 96, 4096, 14336},
    {"linear/96x14336x4096", 96, 14336, 4096},     {"linear/1x4096x4096", 1, 4096, 4096},
    {"linear/1x4096x14336", 1, 4096, 14336},       {"linear/1x14336x4096", 1, 14336, 4096},
    {"linear/1x4096x128256", 1, 4096, 128256},
};

const std::vector<Shape> kCpuBackward = {{"linear_backward/4096x384x512", 4096, 384, 512},
                                         {"linear_backward/4096x384x1024", 4096, 384, 1024},
                                         {"linear_backward/4096x1024x384", 4096, 1024, 384}};
const std::vector<Shape> kCudaBackward = {{"linear_backward/8192x4096x4096", 8192, 4096, 4096},
                                          {"linear_backward/8192x4096x1024", 8192, 4096, 1024},
                                          {"linear_backward/8192x4096x14336", 8192, 4096, 14336},
                                          {"linear_backward/8192x14336x4096", 8192, 14336, 4096}};

const std::vector<Shape> kCpuLoss = {{"token_loss/4096x384x8192", 4096, 384, 8192}};
const std::vector<Shape> kCudaLoss = {{"token_loss/8192x384x8192", 8192, 384, 8192},
                                      {"token_loss/2048x4096x128256", 2048, 4096, 128256}};

const std::vector<Shape> kCpuProject = {{"linear/1x384x(384+96+96)", 1, 384, 384}};
const std::vector<Shape> kCudaProject = {{"linear/1x4096x(4096+1024+1024)", 1, 4096, 4096}};

const Family kLinear{[](Device& device) {
  for (const Shape& shape : device.pick(kCpuProject, kCudaProject)) {
    device.add(shape.name, [shape](Device& on, Samples& samples) { project(on, samples, shape); });
  }
  for (const Shape& shape : device.pick(kCpu, kCuda)) {
    device.add(shape.name, [shape](Device& on, Samples& samples) { run(on, samples, shape); });
  }
  for (const Shape& shape : device.pick(kCpuBackward, kCudaBackward)) {
    device.add(shape.name, [shape](Device& on, Samples& samples) { run_backward(on, samples, shape); });
  }
  for (const Shape& shape : device.pick(kCpuLoss, kCudaLoss)) {
    device.add(shape.name, [shape](Device& on, Samples& samples) { run_loss(on, samples, shape); });
  }
}};

}  // namespace
}  // namespace kv::bench
