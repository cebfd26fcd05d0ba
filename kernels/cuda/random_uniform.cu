#include "kernels/random_uniform.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// One thread a slot.
__global__ void random_uniform_kernel(RandomUniformArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= args.cache.lengths[at.row] || !is_due(args.rows_due, at.row)) return;
  const int64_t sequence = at.row / args.cache.kv_heads;
  const uint32_t head = args.first_head + static_cast<uint32_t>(at.row % args.cache.kv_heads);
  args.scores.row(at.row)[slot] =
      hash_uniform(args.seed, static_cast<uint32_t>(args.numbers[sequence]), head,
                   static_cast<uint32_t>(args.tokens_seen[sequence]), static_cast<uint32_t>(slot));
}

}  // namespace

void random_uniform(const RandomUniformArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(random_uniform_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
