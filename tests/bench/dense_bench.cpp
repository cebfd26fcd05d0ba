#include <Eigen/Core>
#include <string>

#include "kernels/cpu/gemm.h"
#include "tests/bench/bench.h"
#include "tests/support/backends.h"

// The host's own product of dense f32 matrices beside Eigen's, one thread each: c = a · bᵀ, rows x columns x depth. The
// shapes are those of the code: a square one as a yardstick, the reference model's layers, and the quadratic forms,
// windows and Gram matrices of scores at head dimensions 32 to 128.
// GFLOP/s of one core (AVX-512, a machine under load, the best of many runs), ours and Eigen's:
//   2048x2048x2048  63  80        16x1024x384   78  69        500x64x64     110  87
//   4096x512x384    78  79         4x1024x384   42  40        2000x128x128  114  86
//   512x1024x384    94  81         1x1024x384   16  42        128x32x32      86  61
// One row never comes here: linear has its weights packed, and scores of one query are dot products. So ours stays for
// f32, and Eigen has the sums of products in double (query_moments: 1.2 to 1.7 times as fast from 48 tokens on).

namespace kv::bench {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Shape {
  int64_t rows, columns, depth;
};

constexpr Shape kShapes[] = {{2048, 2048, 2048}, {4096, 512, 384}, {512, 1024, 384}, {16, 1024, 384}, {4, 1024, 384},
                             {1, 1024, 384},     {500, 64, 64},    {2000, 128, 128}, {500, 128, 128}, {128, 32, 32}};

// Calls product(a, b, c) with row-major a [rows, depth], b [columns, depth] and c [rows, columns].
template <class Product>
void run(Samples& samples, const Shape& shape, const Product& product) {
  const std::vector<float> a = ref::random_values(static_cast<size_t>(shape.rows * shape.depth), 1);
  const std::vector<float> b = ref::random_values(static_cast<size_t>(shape.columns * shape.depth), 2);
  std::vector<float> c(static_cast<size_t>(shape.rows * shape.columns));
  const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns),
             depth = static_cast<double>(shape.depth);
  samples.take(
      {.bytes = sizeof(float) * (rows * depth + columns * depth + rows * columns), .flops = 2 * rows * columns * depth},
      [&] { product(a.data(), b.data(), c.data()); });
}

void run_ours(Samples& samples, const Shape& shape) {
  run(samples, shape, [&](const float* a, const float* b, float* c) {
    cpu::gemm_nt(a, shape.rows, shape.depth, b, shape.columns, shape.depth, shape.depth, c, shape.columns);
  });
}

void run_eigen(Samples& samples, const Shape& shape) {
  run(samples, shape, [&](const float* a, const float* b, float* c) {
    const Eigen::Map<const RowMajor> left(a, shape.rows, shape.depth), right(b, shape.columns, shape.depth);
    Eigen::Map<RowMajor>(c, shape.rows, shape.columns).noalias() = left * right.transpose();
  });
}

const Family kDense{[](Device& device) {
  if (!device.is_cpu()) return;
  for (const Shape& shape : kShapes) {
    const std::string name =
        std::to_string(shape.rows) + "x" + std::to_string(shape.columns) + "x" + std::to_string(shape.depth);
    device.add("gemm_nt/" + name, [shape](Device&, Samples& samples) { run_ours(samples, shape); });
    device.add("eigen_nt/" + name, [shape](Device&, Samples& samples) { run_eigen(samples, shape); });
  }
}};

}  // namespace
}  // namespace kv::bench
