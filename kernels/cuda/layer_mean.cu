#include "kernels/layer_mean.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

__device__ int32_t position_of(const PagedView& cache, int64_t row, int64_t slot) {
  return cache.positions[place_of(cache, row, slot)];
}

// Where a row holds the token of this position, −1 where it does not. `guess` is where it stands in another row: the
// same slot, as long as heads keep the same tokens.
__device__ int64_t slot_of(const PagedView& cache, int64_t row, int32_t position, int64_t guess) {
  const int64_t length = cache.lengths[row];
  if (guess < length && position_of(cache, row, guess) == position) return guess;
  int64_t low = 0, high = length;  // the first slot whose position is not below
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (position_of(cache, row, middle) < position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < length && position_of(cache, row, low) == position ? low : -1;
}

// Every row sums up all heads of its sequence by itself, although heads that hold the same token get the same sum:
// kv_heads times the reads, and a binary search a head once slots differ. To share sums, heads would first need a
// common list of tokens. It is little beside the attention of the same slots, which it follows at an event: q_heads
// additions a slot and head against group · head_dim multiplications.
__global__ void layer_mean_kernel(LayerMeanArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= args.cache.lengths[at.row] || !is_due(args.rows_due, at.row)) return;
  const int64_t heads = args.cache.kv_heads, first = at.row / heads * heads;
  const int32_t position = position_of(args.cache, at.row, slot);
  float sum = 0;
  for (int64_t row = first; row < first + heads; ++row) {
    const int64_t other = slot_of(args.cache, row, position, slot);
    if (other < 0) continue;
    const float* input = args.input.row(row * args.group) + other;
    for (int g = 0; g < args.group; ++g) sum += input[g * args.input.pitch];
  }
  args.output.row(at.row)[slot] = sum / static_cast<float>(heads * args.group);
}

}  // namespace

void layer_mean(const LayerMeanArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(layer_mean_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
