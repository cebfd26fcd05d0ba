#include "kernels/key_difference.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/unit_keys.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 256;

// One warp a key. The anchor's length cancels in the cosine, so the sum of unit keys serves as their mean.
__global__ void __launch_bounds__(kThreads)
    score_keys(KeyDifferenceArgs args, const double* inverse_norms, const double* sums, int64_t tiles) {
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, kTile);
  const int64_t length = cache.lengths[at.row];
  if (!is_due(args.rows_due, at.row) || at.first >= length) return;
  const int lane = threadIdx.x % 32;
  const int dim = cache.head_dim;
  double anchor[kLaneValues];
  double square = 0;
#pragma unroll
  for (int e = 0; e < kLaneValues; ++e) {
    const int d = lane_index(dim, lane, e);
    anchor[e] = d < dim ? sums[at.row * dim + d] : 0.0;
    square += anchor[e] * anchor[e];
  }
  square = warp_reduce(square, Add());
  const double inverse = square > 0 ? 1 / sqrt(square) : 0.0;
  for (int64_t slot = at.first + threadIdx.x / 32; slot < min(length, at.first + kTile); slot += kThreads / 32) {
    float x[kLaneValues];
    load_lanes(key_of(cache, at.row, slot), dim, lane, x);
    double product = 0;
#pragma unroll
    for (int e = 0; e < kLaneValues; ++e) product += x[e] * anchor[e];
    product = warp_reduce(product, Add());
    if (lane == 0) {
      args.scores.row(at.row)[slot] =
          static_cast<float>(-product * inverse * inverse_norms[at.row * cache.max_length + slot]);
    }
  }
}

}  // namespace

void key_difference(const KeyDifferenceArgs& args) {
  const PagedView& cache = args.cache;
  const Scratch<double> inverse_norms(cache.rows * cache.max_length), sums(cache.rows * cache.head_dim);
  sum_unit_keys({.cache = cache,
                 .rows_due = args.rows_due,
                 .guard = 0,
                 .inverse_norms = inverse_norms.data(),
                 .sums = sums.data()});
  const int64_t tiles = ceil_div(cache.max_length, kTile);
  launch(score_keys, cache.rows * tiles, kThreads, 0, args, inverse_norms.data(), sums.data(), tiles);
}

}  // namespace kv::cuda
