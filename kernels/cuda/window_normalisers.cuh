#pragma once

#include <algorithm>

#include "kernels/cuda/stage_keys.cuh"
#include "kernels/window_attention.h"

// What window_attention's softmaxes subtract. A vector of logits is one query of one query head, or, where the group's
// logits are maximised, one query of one KV head; vector = head · window + query, or query. Its probabilities are
// 2^(logit · scale · log2 e − shift), shift = log2 Σ 2^(logit · scale · log2 e).
//
// A warp holds the queries of some vectors in registers and keys stream by, so that a lane meets many logits of few
// vectors: sums over keys cross lanes once, at the end.

namespace kv::cuda {

// What is maximised over the query heads of a group. Where something is, slots older than the window alone take part.
enum class GroupMax : uint8_t { kNone, kLogits, kProbabilities };

// How many slots take part.
template <GroupMax Max>
__device__ int64_t columns_of(const WindowAttentionArgs& args, int64_t row) {
  return args.cache.lengths[row] - (Max == GroupMax::kNone ? 0 : args.window);
}

// A unit is the 16·M rows of queries that a warp holds, in eights of one head and eight queries: 2^head_shift heads,
// fastest, of one eight of queries, then those of the next. A lane has one row of each eight, so that the heads of a
// query, too, are its own.
template <int D>
struct QueryUnit {
  static constexpr int kM = KeyTile<D>::kM, kEights = 2 * kM, kRows = 8 * kEights;
  static constexpr size_t kBytes = kRows * D * sizeof(bf16);
};

struct NormaliserWork {
  static constexpr int kThreads = 128, kWarps = kThreads / 32;
  static constexpr int kStageKeys = 64, kSpanKeys = 512;  // at a time; of a block
  static constexpr size_t kMostQueryBytes = 65536;        // unless a unit alone has more

  const bf16* queries;
  float2* partial;  // [rows, vectors, pieces]: largest and sum over a piece of the keys
  int64_t spans;    // that cover a row
  int group;
  int vectors;     // of a row
  int head_shift;  // 2^head_shift heads a unit
  int head_tiles;  // of so many heads, that cover the group
  int units;       // of a row: tiles of queries, and of heads where these are apart
  int unit_shift;  // 2^unit_shift units a block; warps beyond these share its keys

  __host__ __device__ int heads() const { return 1 << head_shift; }
  __host__ __device__ int ways() const { return kWarps >> unit_shift; }
  __host__ __device__ int64_t pieces() const { return spans * ways(); }
  __host__ __device__ int unit_groups() const { return (units + (1 << unit_shift) - 1) >> unit_shift; }
};

// Which queries and heads a unit's rows are; the head tiles of a maximum follow one another.
template <int D, GroupMax Max>
struct UnitRows {
  const WindowAttentionArgs& args;
  const NormaliserWork& work;
  int first_query;
  int head_tile;

  __device__ UnitRows(const WindowAttentionArgs& given, const NormaliserWork& of, int unit) : args(given), work(of) {
    const int queries = QueryUnit<D>::kRows >> of.head_shift;
    first_query = (Max == GroupMax::kLogits ? unit : unit / of.head_tiles) * queries;
    head_tile = Max == GroupMax::kLogits ? 0 : unit % of.head_tiles;
  }
  __device__ int query(int eight, int row) const { return first_query + (eight >> work.head_shift) * 8 + row; }
  __device__ int head(int eight, int tile = 0) const {
    return ((head_tile + tile) << work.head_shift) + (eight & (work.heads() - 1));
  }
  __device__ bool has(int eight, int row, int tile = 0) const {
    return query(eight, row) < args.window && head(eight, tile) < work.group;
  }
};

// The queries of the block's units, all head tiles of a maximum.
template <int D, GroupMax Max>
__device__ void stage_units(bf16* staged, const WindowAttentionArgs& args, const NormaliserWork& work, int64_t row,
                            int first_unit) {
  constexpr int kRows = QueryUnit<D>::kRows;
  const int tiles = Max == GroupMax::kLogits ? work.head_tiles : 1;
  const int64_t sequence = row / args.cache.kv_heads;
  const int64_t first_head = row % args.cache.kv_heads * work.group;
  stage_rows<D>(staged, (kRows * tiles) << work.unit_shift, args.cache.head_dim, threadIdx.x, work.kThreads,
                [&](int r) -> const bf16* {
                  const UnitRows<D, Max> rows(args, work, first_unit + r / (kRows * tiles));
                  const int eight = r % kRows / 8, tile = r / kRows % tiles;
                  if (!rows.has(eight, r % 8, tile)) return nullptr;
                  const int64_t query = query_row(args, sequence, rows.query(eight, r % 8));
                  return work.queries +
                         (query * args.q_heads + first_head + rows.head(eight, tile)) * args.cache.head_dim;
                });
}

// The largest logit and the sum of each of a lane's vectors, of the keys that the lane has met; logits unscaled.
template <int D, GroupMax Max>
struct RunningSoftmax {
  static constexpr int kM = QueryUnit<D>::kM, kEights = QueryUnit<D>::kEights;
  float largest[kEights], sum[kEights];

  __device__ void start() {
#pragma unroll
    for (int j = 0; j < kEights; ++j) largest[j] = -1e30f, sum[j] = 0;  // finite: what is masked weighs nothing
  }

  // Of a query's heads only the first counts where they have the same.
  __device__ static bool counts(const NormaliserWork& work, int eight) {
    return Max != GroupMax::kLogits || (eight & (work.heads() - 1)) == 0;
  }

  __device__ void take(const float (&x)[kM][2][4], const NormaliserWork& work, float scale) {
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      if (!counts(work, j)) continue;
      const float values[4] = {x[j / 2][0][j % 2 * 2], x[j / 2][0][j % 2 * 2 + 1], x[j / 2][1][j % 2 * 2],
                               x[j / 2][1][j % 2 * 2 + 1]};
      const float top = fmaxf(fmaxf(fmaxf(values[0], values[1]), fmaxf(values[2], values[3])), largest[j]);
      const float from = top * scale;
      sum[j] *= exp2_fast((largest[j] - top) * scale);
      largest[j] = top;
#pragma unroll
      for (const float value : values) sum[j] += exp2_fast(fmaf(value, scale, -from));
    }
  }

  // Four lanes share a row.
  __device__ float2 of_lanes(int j, float scale) const {
    float2 all = {largest[j] * scale, sum[j]};
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      const float2 other = {__shfl_xor_sync(kWarp, all.x, offset), __shfl_xor_sync(kWarp, all.y, offset)};
      const float top = fmaxf(all.x, other.x);
      all = {top, all.y * exp2_fast(all.x - top) + other.y * exp2_fast(other.x - top)};
    }
    return all;
  }
};

// Logits of sixteen keys, −∞ where a query does not see one.
template <int D, GroupMax Max>
struct UnitLogits {
  static constexpr int kM = QueryUnit<D>::kM, kEights = QueryUnit<D>::kEights;
  const WindowAttentionArgs& args;
  const NormaliserWork& work;
  const UnitRows<D, Max> rows;
  const bf16* queries;  // the unit's
  HeldRows<D, kM> held;

  // Head tile `tile` of the unit.
  __device__ void hold(int tile) { held.load(queries + tile * QueryUnit<D>::kRows * D, 0, threadIdx.x % 32); }

  __device__ void of(const bf16* keys, int first, float (&x)[kM][2][4]) {
    const int lane = threadIdx.x % 32;
    if constexpr (Max != GroupMax::kLogits) {
      held.times_sixteen(keys, first, lane, x);
    } else {
      for (int tile = 0; tile < work.head_tiles; ++tile) {
        if (work.head_tiles > 1) hold(tile);
        float of_tile[kM][2][4];
        held.times_sixteen(keys, first, lane, of_tile);
        merge(of_tile, tile, x);
      }
      if (work.head_shift > 0) merge_eights(x, 1);
      if (work.head_shift > 1) merge_eights(x, 2);
    }
  }

  __device__ void merge(const float (&of_tile)[kM][2][4], int tile, float (&x)[kM][2][4]) const {
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const bool is_present = rows.head(j, tile) < work.group;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float logit = is_present ? of_tile[j / 2][k / 2][j % 2 * 2 + k % 2] : -kInfinity;
        float& largest = x[j / 2][k / 2][j % 2 * 2 + k % 2];
        largest = tile == 0 ? logit : fmaxf(largest, logit);
      }
    }
  }

  // The first of each two eights so far apart gets the larger.
  __device__ static void merge_eights(float (&x)[kM][2][4], int apart) {
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int by = 1; by < kEights; by *= 2) {
        if (by != apart || (j & by) != 0) continue;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float& largest = x[j / 2][k / 2][j % 2 * 2 + k % 2];
          largest = fmaxf(largest, x[(j + by) / 2][k / 2][(j + by) % 2 * 2 + k % 2]);
        }
      }
    }
  }

  // `slot` is that of the first key.
  __device__ void mask(float (&x)[kM][2][4], int slot, int columns, int length) const {
    const int lane = threadIdx.x % 32;
    if (slot + 16 <= (Max == GroupMax::kNone ? length - args.window + 1 : columns)) return;  // all see all
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const int newest =
          min(columns - 1, Max == GroupMax::kNone ? length - args.window + rows.query(j, lane / 4) : columns);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (slot + k / 2 * 8 + lane % 4 * 2 + k % 2 > newest) x[j / 2][k / 2][j % 2 * 2 + k % 2] = -kInfinity;
      }
    }
  }
};

// Blocks of (row, span of keys, units): the latter run next to each other and share the keys in L2.
template <int D, GroupMax Max>
__global__ void __launch_bounds__(NormaliserWork::kThreads, D <= 128 ? 3 : 2)
    partial_normalisers(WindowAttentionArgs args, NormaliserWork work) {
  constexpr int kStageKeys = NormaliserWork::kStageKeys, kSpanKeys = NormaliserWork::kSpanKeys;
  extern __shared__ __align__(128) unsigned char shared[];
  const int groups = work.unit_groups();
  const int first_unit = static_cast<int>(blockIdx.x % groups) << work.unit_shift;
  const int64_t span = blockIdx.x / groups % work.spans, row = blockIdx.x / groups / work.spans;
  if (!is_due(args.rows_due, row)) return;
  const int length = args.cache.lengths[row];
  KV_DEVICE_CHECK(args.window <= length);
  const auto columns = static_cast<int>(columns_of<Max>(args, row));
  const int first = static_cast<int>(span) * kSpanKeys, end = min(first + kSpanKeys, columns);
  if (first >= columns) return;

  auto* ring = reinterpret_cast<bf16*>(shared);  // two stages of keys, then the queries
  bf16* queries = ring + 2 * kStageKeys * D;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int way = warp >> work.unit_shift, of_block = warp & ((1 << work.unit_shift) - 1);
  const int unit_rows = QueryUnit<D>::kRows * (Max == GroupMax::kLogits ? work.head_tiles : 1);
  UnitLogits<D, Max> logits{
      args, work, UnitRows<D, Max>(args, work, first_unit + of_block), queries + of_block * unit_rows * D, {}};
  RunningSoftmax<D, Max> running;
  running.start();
  const float scale = args.scale * kToLog2;

  const auto stage = [&](int from) {
    if (from < end) {
      stage_keys<D, kStageKeys>(ring + from / kStageKeys % 2 * kStageKeys * D, args.cache, row, from, end, threadIdx.x,
                                work.kThreads);
    }
    commit_copies();
  };
  stage_units<D, Max>(queries, args, work, row, first_unit);
  stage(first);
  for (int from = first; from < end; from += kStageKeys) {
    stage(from + kStageKeys);
    wait_copies<1>();
    __syncthreads();
    if (from == first) logits.hold(0);
    const bf16* keys = ring + from / kStageKeys % 2 * kStageKeys * D;
    for (int piece = way * 16; piece < kStageKeys; piece += work.ways() * 16) {
      float x[QueryUnit<D>::kM][2][4];
      logits.of(keys, piece, x);
      logits.mask(x, from + piece, columns, length);
      running.take(x, work, scale);
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < QueryUnit<D>::kEights; ++j) {
    const float2 all = running.of_lanes(j, scale);
    if (lane % 4 != 0 || !running.counts(work, j) || !logits.rows.has(j, lane / 4)) continue;
    const int vector =
        (Max == GroupMax::kLogits ? 0 : logits.rows.head(j) * args.window) + logits.rows.query(j, lane / 4);
    work.partial[(row * work.vectors + vector) * work.pieces() + span * work.ways() + way] = all;
  }
}

// One warp a vector of logits, over the pieces of its row.
template <GroupMax Max>
__global__ void combine_normalisers(WindowAttentionArgs args, NormaliserWork work, float* shifts) {
  const int64_t vector = blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32;
  const int64_t row = vector / work.vectors;
  if (row >= args.cache.rows || !is_due(args.rows_due, row)) return;
  const int64_t columns = columns_of<Max>(args, row);
  const int64_t used = (columns + work.kSpanKeys - 1) / work.kSpanKeys * work.ways();
  const int lane = threadIdx.x % 32;
  const float2* partial = work.partial + vector * work.pieces();
  float largest = -kInfinity;
  for (int64_t piece = lane; piece < used; piece += 32) largest = fmaxf(largest, partial[piece].x);
  largest = warp_reduce(largest, Larger());
  float sum = 0;
  for (int64_t piece = lane; piece < used; piece += 32) sum += partial[piece].y * exp2f(partial[piece].x - largest);
  sum = warp_reduce(sum, Add());
  if (lane == 0 && used > 0) shifts[vector] = largest + log2f(sum);
}

// shifts: [rows, vectors], of rows that are due and have slots that take part.
template <int D, GroupMax Max>
void find_shifts(const WindowAttentionArgs& args, float* shifts) {
  using Work = NormaliserWork;
  using Unit = QueryUnit<D>;
  const int group = args.q_heads / args.cache.kv_heads;
  const int head_shift = group == 1 ? 0 : group == 2 || Unit::kEights == 2 ? 1 : 2;
  Work work{.queries = args.queries.as<bf16>(),
            .partial = nullptr,
            .spans = ceil_div(args.cache.max_length, Work::kSpanKeys),
            .group = group,
            .vectors = Max == GroupMax::kLogits ? args.window : group * args.window,
            .head_shift = head_shift,
            .head_tiles = static_cast<int>(ceil_div(group, 1 << head_shift)),
            .units = 0,
            .unit_shift = 0};
  const auto query_tiles = static_cast<int>(ceil_div(args.window, Unit::kRows >> head_shift));
  work.units = Max == GroupMax::kLogits ? query_tiles : query_tiles * work.head_tiles;
  const size_t unit_bytes = Unit::kBytes * (Max == GroupMax::kLogits ? work.head_tiles : 1);
  while ((1 << work.unit_shift) < std::min(work.units, Work::kWarps) &&
         (unit_bytes << (work.unit_shift + 1)) <= Work::kMostQueryBytes) {
    ++work.unit_shift;
  }
  const int64_t vectors = args.cache.rows * work.vectors;
  const Scratch<float2> partial(vectors * work.pieces());
  work.partial = partial.data();
  const size_t shared = 2 * Work::kStageKeys * D * sizeof(bf16) + (unit_bytes << work.unit_shift);
  launch(partial_normalisers<D, Max>, args.cache.rows * work.spans * work.unit_groups(), Work::kThreads, shared, args,
         work);
  launch(combine_normalisers<Max>, ceil_div(vectors, 4), 128, 0, args, work, shifts);
}

}  // namespace kv::cuda
