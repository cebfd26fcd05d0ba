#include "kernels/row_cosine.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void row_cosine_kernel(const bf16* a, const bf16* b, float* cosine, int64_t rows, int64_t width) {
  const int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32;
  if (row >= rows) return;
  double product = 0, a_square = 0, b_square = 0;
  for (int64_t i = row * width + threadIdx.x % 32; i < (row + 1) * width; i += 32) {
    const double x = to_f32(a[i]);
    const double y = to_f32(b[i]);
    product += x * y;
    a_square += x * x;
    b_square += y * y;
  }
  product = warp_reduce(product, Add());
  const double norms = sqrt(warp_reduce(a_square, Add())) * sqrt(warp_reduce(b_square, Add()));
  if (threadIdx.x % 32 == 0) cosine[row] = norms > 0 ? static_cast<float>(product / norms) : 0.0f;
}

}  // namespace

void row_cosine(const RowCosineArgs& args) {
  launch(row_cosine_kernel, ceil_div(args.rows, kThreads / 32), kThreads, 0, args.a.as<bf16>(), args.b.as<bf16>(),
         args.cosine, args.rows, args.width);
}

}  // namespace kv::cuda
