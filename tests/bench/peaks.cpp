#include "kernels/linear.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

namespace kv::bench {

namespace {

constexpr int kSamples = 15;

// The best of some samples: a peak is what the device can do at all.
double best(Device& device, const std::function<void()>& op) {
  device.timing().seconds(op);
  double least = device.timing().seconds(op);
  for (int i = 1; i < kSamples; ++i) least = std::min(least, device.timing().seconds(op));
  return least;
}

double copy_peak(Device& device) {
  const size_t bytes = size_t{1} << device.pick(28, 31);
  Backend& backend = device.backend();
  const Tensor from = random_floats(backend, static_cast<int64_t>(bytes / sizeof(float)), 1);
  Tensor to(backend, DType::kF32, from.elements());
  return 2.0 * static_cast<double>(bytes) / best(device, [&] { backend.copy(to.ref().data, from.ref().data, bytes); });
}

double gemm_peak(Device& device) {
  const int64_t n = device.pick(2048, 8192);
  Backend& backend = device.backend();
  const Tensor input = random_activations(backend, n * n, 1);
  const Tensor weight = random_activations(backend, n * n, 2);
  Tensor output(backend, backend.activation_type(), n * n);
  const double seconds = best(device, [&] {
    backend.linear({.input = input.ref(),
                    .products = {{.weight = weight.ref(), .output = output.ref(), .out = n}},
                    .rows = n,
                    .in = n});
  });
  return 2.0 * static_cast<double>(n * n * n) / seconds;
}

}  // namespace

Peaks measure_peaks(Device& device) {
  return {.copy_bytes_per_s = copy_peak(device), .gemm_flops_per_s = gemm_peak(device)};
}

}  // namespace kv::bench
