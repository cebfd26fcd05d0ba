#include "kernels/draw_order.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 4 * kThreads;  // slots of a block

__device__ float drawn(const DrawOrderArgs& args, int64_t row, int64_t slot) {
  const int64_t sequence = row / args.cache.kv_heads;
  const uint32_t head = args.first_head + static_cast<uint32_t>(row % args.cache.kv_heads);
  const double u = draw_uniform(args.seed, static_cast<uint32_t>(args.numbers[sequence]), head,
                                static_cast<uint32_t>(args.tokens_seen[sequence]), static_cast<uint32_t>(slot));
  return static_cast<float>(args.scores.row(row)[slot] + log(-log(u)));
}

// A block first finds its candidates, which may be few, so that threads with a logarithm to take lie together.
__global__ void __launch_bounds__(kThreads) draw_order_kernel(DrawOrderArgs args, int64_t tiles) {
  __shared__ int candidates[kTile];
  __shared__ int count;
  let_next_start();
  wait_for_previous();
  const RowTile at = row_tile(tiles, kTile);
  const int64_t end = min(at.first + kTile, int64_t{args.cache.lengths[at.row]} - args.drop_newest);
  if (at.first >= end || !is_due(args.rows_due, at.row)) return;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  float* output = args.output.row(at.row);
  const uint8_t* stays = args.stays ? args.stays.row(at.row) : nullptr;
  const float* scores = args.scores.row(at.row);
  for (auto slot = static_cast<int>(at.first + threadIdx.x); slot < end; slot += kThreads) {
    const float score = scores[slot];
    if (!isfinite(score)) {
      output[slot] = score;
    } else if (stays && stays[slot]) {
      output[slot] = kStays;
    } else {
      candidates[atomicAdd(&count, 1)] = slot;  // in any order: none depends on another
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    output[candidates[i]] = drawn(args, at.row, candidates[i]);
  }
}

}  // namespace

void draw_order(const DrawOrderArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kTile);
  launch_early(draw_order_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
