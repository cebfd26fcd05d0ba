#include "kernels/row_distance.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// A warp a row.
__global__ void row_distance_kernel(const bf16* a, const bf16* b, float* distance, float* length, int64_t rows,
                                    int64_t width) {
  const int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32;
  if (row >= rows) return;
  double difference_square = 0, b_square = 0;
  for (int64_t i = row * width + threadIdx.x % 32; i < (row + 1) * width; i += 32) {
    const double y = to_f32(b[i]), difference = to_f32(a[i]) - y;
    difference_square += difference * difference;
    b_square += y * y;
  }
  difference_square = warp_reduce(difference_square, Add());
  b_square = warp_reduce(b_square, Add());
  if (threadIdx.x % 32 != 0) return;
  distance[row] = static_cast<float>(difference_square);
  length[row] = static_cast<float>(b_square);
}

}  // namespace

void row_distance(const RowDistanceArgs& args) {
  launch(row_distance_kernel, ceil_div(args.rows, kThreads / 32), kThreads, 0, args.a.as<bf16>(), args.b.as<bf16>(),
         args.distance, args.length, args.rows, args.width);
}

}  // namespace kv::cuda
