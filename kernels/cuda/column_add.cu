#include "kernels/column_add.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// A sequence has one segment at most, so no two blocks touch the same column.
__global__ void column_add_kernel(ColumnAddArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);  // row: (segment, KV head)
  const PagedView& cache = args.cache;
  const Segment segment = args.segments[at.row / cache.kv_heads];
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + at.row % cache.kv_heads;
  const int64_t slot = at.first + threadIdx.x;
  if (segment.count == 0 || !is_due(args.sequences, segment.sequence) || slot >= cache.lengths[row]) return;
  const float* addend = args.addend.row(row * args.count) + slot;
  float* columns = args.pool_columns + place_of(cache, row, slot) * cache.column_width + args.first;
  for (int g = 0; g < args.count; ++g) columns[g] += addend[g * args.addend.pitch];
}

__global__ void column_mean_kernel(ColumnMeanArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= args.cache.lengths[at.row]) return;
  const float* columns = args.cache.columns + place_of(args.cache, at.row, slot) * args.cache.column_width + args.first;
  float sum = 0;
  for (int g = 0; g < args.count; ++g) sum += columns[g];
  args.scores.row(at.row)[slot] = sum / static_cast<float>(args.count);
}

}  // namespace

void column_add(const ColumnAddArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(column_add_kernel, args.segment_count * args.cache.kv_heads * tiles, kThreads, 0, args, tiles);
}

void column_mean(const ColumnMeanArgs& args) {
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(column_mean_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
