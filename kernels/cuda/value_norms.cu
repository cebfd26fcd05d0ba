#include "kernels/value_norms.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 256;

// One warp a value.
__global__ void __launch_bounds__(kThreads) weigh_values(ValueNormsArgs args, int64_t tiles) {
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, kTile);
  const int64_t length = cache.lengths[at.row];
  if (!is_due(args.rows_due, at.row) || at.first >= length) return;
  const int lane = threadIdx.x % 32;
  for (int64_t slot = at.first + threadIdx.x / 32; slot < min(length, at.first + kTile); slot += kThreads / 32) {
    float x[kLaneValues];
    load_lanes(value_of(cache, at.row, slot), cache.head_dim, lane, x);
    float square = 0;
#pragma unroll
    for (int e = 0; e < kLaneValues; ++e) square += x[e] * x[e];
    square = warp_reduce(square, Add());
    if (lane != 0) continue;
    const float weight = args.weights ? args.weights.row(at.row)[slot] : 1.0f;
    args.scores.row(at.row)[slot] = weight * sqrtf(square);
  }
}

}  // namespace

void value_norms(const ValueNormsArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kTile);
  launch(weigh_values, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
