#include "kernels/attention_columns.h"

#include <type_traits>

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// V neighbouring columns at a time: an entry's lie together, and what is written in small pieces costs whole sectors.
template <int V>
struct Pack {
  float at[V];
};
template <int V>
using Packed = std::conditional_t<V == 4, float4, std::conditional_t<V == 2, float2, float>>;
template <int V>
__device__ Pack<V> read(const float* from) {
  return __builtin_bit_cast(Pack<V>, *reinterpret_cast<const Packed<V>*>(from));
}
template <int V>
__device__ void write(float* to, const Pack<V>& values) {
  *reinterpret_cast<Packed<V>*>(to) = __builtin_bit_cast(Packed<V>, values);
}

// A thread an entry; a sequence has one segment at most, so no two touch the same columns.
template <int V>
__global__ void add_kernel(AttentionColumnsAddArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);  // row: (segment, KV head)
  const PagedView& cache = args.cache;
  const Segment segment = args.segments[at.row / cache.kv_heads];
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + at.row % cache.kv_heads;
  const int64_t slot = at.first + threadIdx.x;
  const Suffixes& suffixes = args.suffixes;
  const bool is_early = segment.first_position < suffixes.first;
  const int32_t left = is_early ? 0 : suffixes.left(segment.first_position);
  if (segment.count == 0 || !is_due(args.sequences, segment.sequence) || slot >= cache.lengths[row]) return;
  float* columns = args.pool_columns + place_of(cache, row, slot) * cache.column_width;
  for (int h = 0; h < args.group; h += V) {
    Pack<V> sums;
#pragma unroll
    for (int v = 0; v < V; ++v) sums.at[v] = args.sums.row(row * args.group + h + v)[slot];
    const auto add = [&](int column, bool begins = false) {
      Pack<V> total = begins ? Pack<V>{} : read<V>(columns + column);
#pragma unroll
      for (int v = 0; v < V; ++v) total.at[v] += sums.at[v];
      write(columns + column, total);
    };
    if (is_early) {
      add(h);
      add(args.group + h);
      continue;
    }
    if (!args.suffixes_only) add(2 * args.group + h);
#pragma unroll
    for (int k = 0; k < Suffixes::kMost; ++k) {
      if (k < suffixes.count && left <= suffixes.of[k]) add((3 + k) * args.group + h, left == suffixes.of[k]);
    }
  }
}

template <int V>
__global__ void fold_kernel(AttentionColumnsFoldArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const PagedView& cache = args.cache;
  const int64_t slot = at.first + threadIdx.x;
  if (!is_due(args.rows_due, at.row) || slot >= cache.lengths[at.row]) return;
  float* columns = args.pool_columns + place_of(cache, at.row, slot) * cache.column_width;
  const bool is_counted = args.rows_counted && args.rows_counted[at.row];
  const int64_t plane = at.row * args.planes + args.first_plane;
  const int group = args.group, interval = args.suffix_count, all = interval + args.recent_planes;
  for (int h = 0; h < group; h += V) {
    Pack<V> cumulative = read<V>(columns + h), decayed = read<V>(columns + group + h), recent{};
    if (args.has_recent) {
      recent = read<V>(columns + 2 * group + h);
      write(columns + 2 * group + h, Pack<V>{});
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const auto feature = [&](int f) -> float& { return args.features.row(plane + f * group + h + v)[slot]; };
      if (!args.has_recent) recent.at[v] = feature(interval);
      const float counted = is_counted ? recent.at[v] : 0;
      cumulative.at[v] += recent.at[v] - counted;
      decayed.at[v] = args.decay * (decayed.at[v] - counted) + recent.at[v];
      for (int copy = interval; copy < all; ++copy) feature(copy) = recent.at[v];
      feature(all) = cumulative.at[v];
      feature(all + 1) = decayed.at[v];
    }
    write(columns + h, cumulative);
    write(columns + group + h, decayed);
    for (int k = 0; k < interval; ++k) {
      const Pack<V> newest = read<V>(columns + (3 + k) * group + h);
#pragma unroll
      for (int v = 0; v < V; ++v) args.features.row(plane + k * group + h + v)[slot] = newest.at[v];
    }
  }
}

// Calls with the most columns that can be read at a time.
template <class Args, class Call>
void with_pack(const Args& args, const Call& call) {
  const auto fits = [&](int v) {
    return args.group % v == 0 && args.cache.column_width % v == 0 && is_aligned(args.pool_columns, v * sizeof(float));
  };
  if (fits(4)) return call(std::integral_constant<int, 4>());
  if (fits(2)) return call(std::integral_constant<int, 2>());
  return call(std::integral_constant<int, 1>());
}

}  // namespace

void attention_columns_add(const AttentionColumnsAddArgs& args) {
  KV_CHECK(args.cache.column_width >= columns_needed(args) && args.suffixes.interval > 0);
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  with_pack(args, [&](auto pack) {
    launch(add_kernel<pack>, args.segment_count * args.cache.kv_heads * tiles, kThreads, 0, args, tiles);
  });
}

void attention_columns_fold(const AttentionColumnsFoldArgs& args) {
  KV_CHECK(args.cache.column_width >= columns_needed(args) && args.first_plane + planes_written(args) <= args.planes);
  KV_CHECK(args.has_recent || args.suffix_count == 0);
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  with_pack(args, [&](auto pack) { launch(fold_kernel<pack>, args.cache.rows * tiles, kThreads, 0, args, tiles); });
}

}  // namespace kv::cuda
