#include "kernels/attention_columns.h"

#include <type_traits>

#include "kernels/cuda/mma.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 128;  // entries that a block folds, a thread each

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

// The columns that a segment's sums go to: `recent` and suffixes, or those of early ones.
struct Targets {
  static constexpr int kMost = 1 + Suffixes::kMost;
  bool is_early;
  int first;
  bool takes[kMost], begins[kMost];  // of the columns from `first` on

  __device__ Targets(const AttentionColumnsAddArgs& args, const Segment& segment) {
    const Suffixes& suffixes = args.suffixes;
    is_early = segment.first_position < suffixes.first;
    first = is_early ? 0 : 2;
    takes[0] = true;
    begins[0] = false;
#pragma unroll
    for (int k = 0; k < Suffixes::kMost; ++k) {
      const int32_t come =
          is_early || k >= suffixes.count ? 0 : suffixes.come(k, segment.first_position + segment.count);
      takes[1 + k] = is_early ? k == 0 : come > 0;
      begins[1 + k] = !is_early && come <= segment.count;
    }
  }

  // What is added to the t-th of them.
  __device__ const float* sums(const AttentionColumnsAddArgs& args, int64_t row, int t, int h) const {
    if (t == 0 || is_early || !args.suffix_sums) return args.sums.row(row * args.group + h);
    return args.suffix_sums.row((row * args.suffixes.count + t - 1) * args.group + h);
  }
};

// A thread an entry; a sequence has one segment at most, so no two touch the same columns. Most steps add to `recent`
// alone, which is one sector of an entry's: to stage columns as fold_kernel does would read the others for nothing.
template <int V>
__global__ void __launch_bounds__(kThreads) add_kernel(AttentionColumnsAddArgs args, int64_t tiles) {
  let_next_start();
  wait_for_previous();
  const RowTile at = row_tile(tiles, kThreads);  // row: (segment, KV head)
  const PagedView& cache = args.cache;
  const Segment segment = args.segments[at.row / cache.kv_heads];
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + at.row % cache.kv_heads;
  const int64_t slot = at.first + threadIdx.x;
  if (segment.count == 0 || !is_due(args.sequences, segment.sequence) || slot >= cache.lengths[row]) return;
  const Targets targets(args, segment);
  float* columns = args.pool_columns + place_of(cache, row, slot) * cache.column_width + targets.first * args.group;
  for (int h = 0; h < args.group; h += V) {
    // All are read before one is written: the compiler cannot know that they are different ones.
    Pack<V> totals[Targets::kMost];
#pragma unroll
    for (int t = 0; t < Targets::kMost; ++t) {
      totals[t] = targets.takes[t] && !targets.begins[t] ? read<V>(columns + t * args.group + h) : Pack<V>{};
    }
#pragma unroll
    for (int t = 0; t < Targets::kMost; ++t) {
      if (!targets.takes[t]) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) totals[t].at[v] += targets.sums(args, row, t, h + v)[slot];
    }
#pragma unroll
    for (int t = 0; t < Targets::kMost; ++t) {
      if (targets.takes[t]) write(columns + t * args.group + h, totals[t]);
    }
  }
}

// From one entry's columns to the next one's in shared memory: an odd number of packs, so that threads which have an
// entry each find theirs in different banks.
template <int V>
__host__ __device__ int staged_stride(int columns) {
  return (columns / V | 1) * V;
}

// Calls with the entry and column of every pack of the entries' first columns, neighbouring threads with neighbouring
// packs, as they lie together in the pool.
template <int V, class Call>
__device__ void for_packs(int entries, int columns, const Call& call) {
  const int packs = columns / V, whole = kTile / packs, rest = kTile % packs, thread = static_cast<int>(threadIdx.x);
  int entry = thread / packs, pack = thread % packs;
  while (entry < entries) {
    call(entry, pack * V);
    entry += whole, pack += rest;
    if (pack >= packs) ++entry, pack -= packs;
  }
}

// `columns` are the entry's own.
template <int V>
__device__ void fold_entry(const AttentionColumnsFoldArgs& args, int64_t row, int64_t slot, float* columns) {
  const bool is_counted = args.rows_counted && args.rows_counted[row];
  const int64_t plane = row * args.planes + args.first_plane;
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
#pragma unroll 1
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

// A block's entries have their columns in shared memory while each thread folds one.
template <int V>
__global__ void __launch_bounds__(kTile) fold_kernel(AttentionColumnsFoldArgs args, int64_t tiles) {
  extern __shared__ __align__(16) float staged[];
  let_next_start();
  wait_for_previous();
  const RowTile at = row_tile(tiles, kTile);
  const PagedView& cache = args.cache;
  const auto entries = static_cast<int>(min(int64_t{kTile}, cache.lengths[at.row] - at.first));
  if (!is_due(args.rows_due, at.row) || entries <= 0) return;
  const auto columns = static_cast<int>(columns_needed(args));
  const int stride = staged_stride<V>(columns), thread = static_cast<int>(threadIdx.x);
  const auto in_pool = [&](int entry) {
    return args.pool_columns + place_of(cache, at.row, at.first + entry) * cache.column_width;
  };
  for_packs<V>(entries, columns, [&](int entry, int column) {
    copy_few_async<V * sizeof(float)>(staged + entry * stride + column, in_pool(entry) + column);
  });
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  if (thread < entries) fold_entry<V>(args, at.row, at.first + thread, staged + thread * stride);
  __syncthreads();
  // Suffixes stay as they are.
  for_packs<V>(entries, (args.has_recent ? 3 : 2) * args.group, [&](int entry, int column) {
    write(in_pool(entry) + column, read<V>(staged + entry * stride + column));
  });
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
    launch_early(add_kernel<pack>, args.segment_count * args.cache.kv_heads * tiles, kThreads, 0, args, tiles);
  });
}

void attention_columns_fold(const AttentionColumnsFoldArgs& args) {
  KV_CHECK(args.cache.column_width >= columns_needed(args) && args.first_plane + planes_written(args) <= args.planes);
  KV_CHECK(args.has_recent || args.suffix_count == 0);
  const int64_t tiles = ceil_div(args.cache.max_length, kTile);
  with_pack(args, [&](auto pack) {
    const int stride = staged_stride<pack>(static_cast<int>(columns_needed(args)));
    launch_early(fold_kernel<pack>, args.cache.rows * tiles, kTile, size_t{kTile} * stride * sizeof(float), args,
                 tiles);
  });
}

}  // namespace kv::cuda
