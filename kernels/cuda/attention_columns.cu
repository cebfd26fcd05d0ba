#include "kernels/attention_columns.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// A thread an entry; a sequence has one segment at most, so no two touch the same columns.
__global__ void add_kernel(AttentionColumnsAddArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);  // row: (segment, KV head)
  const PagedView& cache = args.cache;
  const Segment segment = args.segments[at.row / cache.kv_heads];
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + at.row % cache.kv_heads;
  const int64_t slot = at.first + threadIdx.x;
  const bool is_early = segment.first_position < args.early_tokens;
  if (segment.count == 0 || slot >= cache.lengths[row]) return;
  float* columns = args.pool_columns + place_of(cache, row, slot) * cache.column_width;
  for (int h = 0; h < args.group; ++h) {
    const float sum = args.sums.row(row * args.group + h)[slot];
    if (is_early) {
      columns[h] += sum;
      columns[args.group + h] += sum;
    } else {
      columns[2 * args.group + h] += sum;
    }
  }
}

__global__ void fold_kernel(AttentionColumnsFoldArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const PagedView& cache = args.cache;
  const int64_t slot = at.first + threadIdx.x;
  if (!is_due(args.rows_due, at.row) || slot >= cache.lengths[at.row]) return;
  float* columns = args.pool_columns + place_of(cache, at.row, slot) * cache.column_width;
  const bool is_counted = args.rows_counted && args.rows_counted[at.row];
  const int64_t plane = at.row * args.planes + args.first_plane;
  const int group = args.group;
  for (int h = 0; h < group; ++h) {
    const auto feature = [&](int f) -> float& { return args.features.row(plane + f * group + h)[slot]; };
    const float recent = args.has_recent ? columns[2 * group + h] : feature(0);
    const float counted = is_counted ? recent : 0;
    const float cumulative = columns[h] + (recent - counted);
    const float decayed = args.decay * (columns[group + h] - counted) + recent;
    columns[h] = cumulative;
    columns[group + h] = decayed;
    if (args.has_recent) columns[2 * group + h] = 0;
    for (int copy = 0; copy < args.recent_planes; ++copy) feature(copy) = recent;
    feature(args.recent_planes) = cumulative;
    feature(args.recent_planes + 1) = decayed;
  }
}

}  // namespace

void attention_columns_add(const AttentionColumnsAddArgs& args) {
  KV_CHECK(args.cache.column_width >= columns_needed(args));
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(add_kernel, args.segment_count * args.cache.kv_heads * tiles, kThreads, 0, args, tiles);
}

void attention_columns_fold(const AttentionColumnsFoldArgs& args) {
  KV_CHECK(args.cache.column_width >= columns_needed(args) && args.first_plane + planes_written(args) <= args.planes);
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(fold_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
