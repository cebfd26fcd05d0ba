#include "kernels/future_scores.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void future_scores_kernel(FutureScoresArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= args.cache.lengths[at.row] || !is_due(args.rows_due, at.row)) return;
  const int64_t block = args.from_block[at.row / args.cache.kv_heads];
  float score = 0;
  if (block >= 0 && block < args.blocks) {
    const int64_t position = args.cache.positions[place_of(args.cache, at.row, slot)];
    KV_DEVICE_CHECK(position >= 0 && position < args.tokens);
    score = args.table[(at.row * args.blocks + block) * args.tokens + position];
  }
  args.scores.row(at.row)[slot] = score;
}

__device__ float merged(const FutureTableArgs& args, const float* input, int64_t block) {
  const int64_t first = block * args.merge;
  const int64_t end = min(args.blocks, first + args.merge);
  float value = input[first * args.tokens];
  for (int64_t b = first + 1; b < end; ++b) {
    const float next = input[b * args.tokens];
    value = args.combine == FutureTableArgs::Combine::kSum ? value + next : (next > value ? next : value);
  }
  return value * args.scale;
}

// One thread a (head, token) walks the blocks from the last: the running maximum serves an endless horizon.
__global__ void suffix_table(FutureTableArgs args, int64_t merged_blocks, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t token = at.first + threadIdx.x;
  if (token >= args.tokens) return;
  const float* input = args.input + at.row * args.blocks * args.tokens + token;
  float* output = args.output + at.row * merged_blocks * args.tokens + token;
  float largest = -kInfinity;
  for (int64_t b = merged_blocks - 1; b >= 0; --b) {
    const float value = merged(args, input, b);
    largest = value > largest ? value : largest;
    output[b * args.tokens] = largest;
  }
}

__global__ void horizon_table(FutureTableArgs args, int64_t merged_blocks, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t token = at.first + threadIdx.x;
  if (token >= args.tokens) return;
  const float* input = args.input + at.row * args.blocks * args.tokens + token;
  float* output = args.output + at.row * merged_blocks * args.tokens + token;
  for (int64_t b = 0; b < merged_blocks; ++b) output[b * args.tokens] = merged(args, input, b);
  // In place from the front: block b only needs later blocks, which still hold their own values.
  for (int64_t b = 0; b < merged_blocks; ++b) {
    float largest = output[b * args.tokens];
    const int64_t end = min(merged_blocks, b + args.horizon);
    for (int64_t later = b + 1; later < end; ++later) {
      const float value = output[later * args.tokens];
      largest = value > largest ? value : largest;
    }
    output[b * args.tokens] = largest;
  }
}

}  // namespace

void future_scores(const FutureScoresArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(future_scores_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

void future_table(const FutureTableArgs& args) {
  KV_CHECK(args.merge > 0);
  const int64_t tiles = ceil_div(args.tokens, kThreads);
  const int64_t merged_blocks = ceil_div(args.blocks, args.merge);
  launch(args.horizon <= 0 ? suffix_table : horizon_table, args.heads * tiles, kThreads, 0, args, merged_blocks, tiles);
}

}  // namespace kv::cuda
