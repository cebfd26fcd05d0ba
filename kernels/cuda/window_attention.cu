#include "kernels/window_attention.h"

#include <algorithm>

#include "kernels/cuda/attend/expiries.cuh"
#include "kernels/cuda/window_normalisers.cuh"
#include "kernels/cuda/window_statistics.cuh"

namespace kv::cuda {

namespace {

using Mode = WindowAttentionArgs::Mode;

constexpr int kTileColumns = KeyTile<128>::kQueries;  // whatever the width

struct Work {
  const bf16* queries;
  const float* shifts;  // [rows, vectors], window_normalisers.cuh; null where args.log_sums are given
  int64_t tiles;        // of keys, of a row
  int group;
  int vectors;     // a row: group · window, or window where the group's logits are maximised
  int head_shift;  // 2^head_shift query heads share a tile
  int head_tiles;  // that cover the group

  __host__ __device__ int heads() const { return 1 << head_shift; }
  __host__ __device__ int tile_queries() const { return kTileColumns >> head_shift; }  // of a tile
};

// What the columns of a tile of queries are.
struct Columns {
  alignas(8) float shifts[kTileColumns];  // infinity: of no query
  int vectors[kTileColumns];              // of the queries, counted from Logits::first_vector; −1: none
};

// A tile of keys, which a thread block holds, against tiles of the window's queries, which stream by: while one is
// used, the next is on its way. The 64 columns of such a tile are pairs (query, head), heads fastest, so that a short
// window, too, fills them and the keys are read once for the group. Where the group's logits are maximised, tiles of
// other heads follow before those of other queries, and all heads of a query get the largest logit. Where its
// probabilities are, a tile is four sixteens of columns, one head and sixteen queries each: all heads of these queries
// follow one another, in whichever tiles they fall, and a lane finds the largest without asking others.
template <int D, GroupMax Max>
struct Logits {
  using Tile = KeyTile<D>;
  static constexpr int kSixteens = Tile::kQueries / 16;
  static constexpr int kLargest = Max == GroupMax::kLogits ? 8 : 2;  // eights of columns whose largest are kept
  static constexpr int kM = Tile::kM;
  static constexpr size_t kSharedBytes = (Tile::kKeys + Tile::kQueries) * D * sizeof(bf16);
  const WindowAttentionArgs& args;
  const Work& work;
  bf16* staged;       // two tiles of queries; the second lies where the keys were until they are held
  Columns* of_turns;  // two: what is used, and what is on its way
  int64_t row;
  int64_t first_slot;
  int head_tile;  // where nothing is maximised
  int sequence;
  int64_t first_vector;  // of queries: of the sequence's window, or of all where rows are given; the group's first head
  int length, columns;   // of the row, which is asked about at every step
  HeldRows<D, kM> keys;

  __device__ Logits(const WindowAttentionArgs& args, const Work& work, bf16* staged, Columns* of_turns, int64_t row,
                    int64_t first_slot, int head_tile)
      : args(args),
        work(work),
        staged(staged),
        of_turns(of_turns),
        row(row),
        first_slot(first_slot),
        head_tile(head_tile),
        sequence(static_cast<int>(row) / args.cache.kv_heads),
        first_vector((args.query_rows ? 0 : int64_t{sequence} * args.window * args.q_heads) +
                     row % args.cache.kv_heads * work.group),
        length(args.cache.lengths[row]),
        columns(static_cast<int>(columns_of<Max>(args, row))) {}

  __device__ int steps() const {
    if (Max == GroupMax::kProbabilities) return ((args.window + 15) / 16 * work.group + kSixteens - 1) / kSixteens;
    const int tiles = (args.window + work.tile_queries() - 1) / work.tile_queries();
    return Max == GroupMax::kLogits ? tiles * work.head_tiles : tiles;
  }

  // Of the step's first column.
  __device__ int first_query(int step) const {
    if (Max == GroupMax::kProbabilities) return step * kSixteens / work.group * 16;
    return (Max == GroupMax::kLogits ? step / work.head_tiles : step) * work.tile_queries();
  }
  // The head of its first column where probabilities are maximised, else its tile of heads.
  __device__ int heads_of(int step) const {
    if (Max == GroupMax::kProbabilities) return step * kSixteens % work.group;
    return Max == GroupMax::kLogits ? step % work.head_tiles : head_tile;
  }
  __device__ int query_of(int first, int heads, int column) const {
    if (Max != GroupMax::kProbabilities) return first + (column >> work.head_shift);
    int query = first + column % 16;
    for (int head = heads + column / 16; head >= work.group; head -= work.group) query += 16;
    return query;
  }
  __device__ int head_of(int heads, int column) const {
    if (Max != GroupMax::kProbabilities) return (heads << work.head_shift) + (column & (work.heads() - 1));
    int head = heads + column / 16;
    while (head >= work.group) head -= work.group;
    return head;
  }
  __device__ bf16* queries_of(int turn) const { return staged + turn % 2 * Tile::kQueries * D; }

  // With the queries of the first turn, whose columns are known.
  __device__ void hold_keys() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bf16* tile = staged + Tile::kQueries * D;
    stage_keys<D, Tile::kKeys>(tile, args.cache, row, static_cast<int>(first_slot), columns, threadIdx.x,
                               Tile::kThreads);
    stage_queries(0);
    wait_copies<0>();
    __syncthreads();
    keys.load(tile, warp * 16 * kM, lane);
    __syncthreads();
  }

  __device__ Columns& columns_of_turn(int turn) const { return of_turns[turn % 2]; }
  __device__ void stage_queries(int turn) const {
    const int dim = args.cache.head_dim;
    const bf16* const first = work.queries + first_vector * dim;
    const int* const vectors = columns_of_turn(turn).vectors;
    stage_rows<D>(queries_of(turn), Tile::kQueries, dim, threadIdx.x, Tile::kThreads,
                  [&](int r) { return vectors[r] >= 0 ? first + int64_t{vectors[r]} * dim : nullptr; });
    commit_copies();
  }

  // Of a step's columns, one a thread, and none of what is beyond the window.
  __device__ static bool has_column() { return threadIdx.x < Tile::kQueries; }
  __device__ int vector_of(int step) const {
    const auto column = static_cast<int>(threadIdx.x);
    const int query = query_of(first_query(step), heads_of(step), column), g = head_of(heads_of(step), column);
    if (!has_column() || query >= args.window || g >= work.group) return -1;
    const int row = args.query_rows ? args.query_rows[sequence * args.window + query] : query;
    return row * args.q_heads + g;
  }
  // Of a group whose logits are maximised, one head stands for all.
  __device__ float shift_of(int turn, int step) const {
    constexpr bool kOfOneHead = Max != GroupMax::kLogits;
    const auto column = static_cast<int>(threadIdx.x);
    const int query = query_of(first_query(step), heads_of(step), column), g = head_of(heads_of(step), column);
    if (!has_column() || query >= args.window || (kOfOneHead && g >= work.group)) return kInfinity;
    if (args.log_sums) return args.log_sums[first_vector + columns_of_turn(turn).vectors[column]] * kToLog2;
    return work.shifts[row * work.vectors + (kOfOneHead ? g * args.window + query : query)];
  }
  __device__ void keep_vector(int turn, int vector) const {
    if (has_column()) columns_of_turn(turn).vectors[threadIdx.x] = vector;
  }
  __device__ void keep_shift(int turn, float shift) const {
    if (has_column()) columns_of_turn(turn).shifts[threadIdx.x] = shift;
  }

  __device__ int64_t slot(int m, int e) const {
    return first_slot + threadIdx.x / 32 * 16 * kM + m * 16 + threadIdx.x % 32 / 4 + e / 2 * 8;
  }
  __device__ static int column(int n, int e) { return n * 8 + threadIdx.x % 4 * 2 + e % 2; }

  // visit(n, p): probabilities of the columns of n and n + 1 for each n of the step's tile of queries, where they are
  // complete; 0 where a query does not see a key, unless all see all. The newest queries come last, or first.
  template <bool kNewestFirst, bool kSeesAll, class Visit>
  __device__ void visit_probabilities(int turn, int step, float (&largest)[kLargest][kM][4], const Visit& visit) const {
    const bool is_last = Max != GroupMax::kLogits || heads_of(step) == work.head_tiles - 1;
#pragma unroll
    for (int nth = 0; nth < 8; nth += 2) {
      const int n = kNewestFirst ? 6 - nth : nth;
      float x[kM][2][4];
      keys.times_sixteen(queries_of(turn), n * 8, threadIdx.x % 32, x);
      if constexpr (Max == GroupMax::kLogits) merge_heads(heads_of(step), n, x, largest);
      if (!is_last) continue;
      if constexpr (!kSeesAll) mask(first_query(step), n, x);
      normalise(columns_of_turn(turn).shifts, n, x);
      if constexpr (Max == GroupMax::kProbabilities) {
        const int head = head_of(heads_of(step), n * 8);
        merge_head(head, x, largest);
        if (head < work.group - 1) continue;
      }
      visit(n, x);
    }
  }

  // x = the largest of it and the heads before.
  __device__ void merge_head(int head, float (&x)[kM][2][4], float (&largest)[2][kM][4]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& probability = x[m][i][e];
          if (head > 0) probability = fmaxf(probability, largest[i][m][e]);
          largest[i][m][e] = probability;
        }
      }
    }
  }

  // x = the largest of what came before and the heads of this tile; of a query's heads, too, when all were there.
  __device__ void merge_heads(int heads, int n, float (&x)[kM][2][4], float (&largest)[8][kM][4]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& logit = x[m][i][e];
          if (head_of(heads, column(n + i, e)) >= work.group) logit = -kInfinity;
          if (heads > 0) logit = fmaxf(logit, largest[n + i][m][e]);
          largest[n + i][m][e] = logit;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) largest_of_heads(x[m][i][2 * half], x[m][i][2 * half + 1]);
      }
    }
  }

  // A query's heads are neighbours: the two columns of a lane, then those of the lanes beside it.
  __device__ void largest_of_heads(float& a, float& b) const {
    if (work.head_shift == 0) return;
    a = b = fmaxf(a, b);
    for (int shift = 1; shift < work.head_shift; ++shift) a = b = fmaxf(a, __shfl_xor_sync(kWarp, a, shift));
  }

  // The newest slot that the step's first query sees; later ones of the window see one more each.
  __device__ int newest_of(int first) const { return length - args.window + (Max == GroupMax::kNone ? first : -1); }
  __device__ bool sees_all(int step) const {
    const auto begin = static_cast<int>(first_slot), end = begin + Tile::kKeys;
    if (Max == GroupMax::kNone && args.newest_positions && Expiries{args.cache, row, length}.may(begin, end)) {
      return false;
    }
    return end <= newest_of(first_query(step)) + 1;
  }

  __device__ void mask(int first, int n, float (&x)[kM][2][4]) const {
    const int newest = newest_of(first);
    if (Max == GroupMax::kNone && args.newest_positions) hide_expired(first, n, x);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int seen =
              Max == GroupMax::kNone ? min(columns - 1, newest + (column(n + i, e) >> work.head_shift)) : newest;
          if (static_cast<int>(slot(m, e)) > seen) x[m][i][e] = -kInfinity;
        }
      }
    }
  }

  // What had expired by the queries' positions.
  __device__ void hide_expired(int first, int n, float (&x)[kM][2][4]) const {
    const Expiries expiries{args.cache, row, length};
    const auto begin = static_cast<int>(first_slot);
    if (!expiries.may(begin, begin + Tile::kKeys)) return;
    const int position = args.newest_positions[sequence] - (args.window - 1 - first);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t until = expiries.of(static_cast<int>(slot(m, 2 * half)));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (until <= position + (column(n + i, e) >> work.head_shift)) x[m][i][2 * half + e] = -kInfinity;
          }
        }
      }
    }
  }

  __device__ void normalise(const float (&of_columns)[Tile::kQueries], int n, float (&x)[kM][2][4]) const {
    const float scale = args.scale * kToLog2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 shift = *reinterpret_cast<const float2*>(&of_columns[column(n + i, 0)]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) x[m][i][e] = exp2_fast(fmaf(x[m][i][e], scale, -(e % 2 == 0 ? shift.x : shift.y)));
      }
    }
  }
};

// Blocks of (row, key tile, tile of heads): the latter run next to each other and share the keys in L2.
template <int D, GroupMax Max>
__device__ bool place_block(const WindowAttentionArgs& args, const Work& work, int64_t& row, int64_t& tile,
                            int& head_tile) {
  const int head_tiles = Max == GroupMax::kNone ? work.head_tiles : 1;
  head_tile = blockIdx.x % head_tiles;
  tile = blockIdx.x / head_tiles % work.tiles;
  row = blockIdx.x / head_tiles / work.tiles;
  return is_due(args.rows_due, row) && tile * KeyTile<D>::kKeys < columns_of<Max>(args, row);
}

// Where a head's k-th statistic goes.
template <GroupMax Max, class Statistics>
__device__ int64_t vector_at(const WindowAttentionArgs& args, const Work& work, int64_t row, int k, int g) {
  if (Max != GroupMax::kNone) return row;
  return Statistics::kCount > 1 ? row * args.planes + k * work.group + g : row * work.group + g;
}

// Writes the k-th statistic of the block's slots, of what the lanes have of it.
template <class Statistics, int D, GroupMax Max>
__device__ void write_statistic(const Logits<D, Max>& logits, int k, const float (&of_lane)[KeyTile<D>::kM][4]) {
  const WindowAttentionArgs& args = logits.args;
  const Work& work = logits.work;
  // Where the group's logits are maximised all heads have the same sum; adding them up is exact, as is their number.
  constexpr bool kIsMax = Max != GroupMax::kNone;
  const int heads = kIsMax ? 1 : work.heads();
  const auto weight = static_cast<float>(Statistics::kCount > 1 ? 1
                                         : kIsMax               ? args.window << work.head_shift
                                                                : args.window);
#pragma unroll
  for (int m = 0; m < KeyTile<D>::kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float a = of_lane[m][2 * half], b = of_lane[m][2 * half + 1];
      if (heads == 1) a = b = Statistics::combine(k, a, b);
      for (int lanes = max(1, heads / 2); lanes < 4; lanes *= 2) {
        a = Statistics::combine(k, a, __shfl_xor_sync(kWarp, a, lanes));
        b = Statistics::combine(k, b, __shfl_xor_sync(kWarp, b, lanes));
      }
      const int64_t slot = logits.slot(m, 2 * half);
      if (slot >= logits.columns) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int h = threadIdx.x % 4 * 2 + e, g = (logits.head_tile << work.head_shift) + h;
        if (h >= heads || (!kIsMax && g >= work.group)) continue;
        args.scores.row(vector_at<Max, Statistics>(args, work, logits.row, k, g))[slot] = (e == 0 ? a : b) / weight;
      }
    }
  }
}

// scores = statistics of the window's queries' probabilities.
template <int D, GroupMax Max, class Statistics>
__global__ void __launch_bounds__(KeyTile<D>::kThreads, std::min(D <= 64 ? 5 : 3, Statistics::kBlocks))
    add_probabilities(WindowAttentionArgs args, Work work) {
  using Tile = KeyTile<D>;
  constexpr int kM = Tile::kM;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Columns of_turns[2];
  let_next_start();
  wait_for_previous();
  int64_t row, tile;
  int head_tile;
  if (!place_block<D, Max>(args, work, row, tile, head_tile)) return;
  Logits<D, Max> logits(args, work, reinterpret_cast<bf16*>(shared), of_turns, row, tile * Tile::kKeys, head_tile);
  Statistics statistics(args, row);
  const auto write = [&](int k, const float(&of_lane)[kM][4]) { write_statistic<Statistics>(logits, k, of_lane); };
  float largest[Logits<D, Max>::kLargest][kM][4];
  const int first_step = statistics.skipped(args.window) / work.tile_queries(), steps = logits.steps() - first_step;
  const auto step_of = [&](int turn) { return first_step + (Statistics::kNewestFirst ? steps - 1 - turn : turn); };
  // What a column needs is asked for a turn before it is used, its query's place two turns before.
  const auto vector_of = [&](int turn) { return turn < steps ? logits.vector_of(step_of(turn)) : -1; };
  const auto shift_of = [&](int turn) { return turn < steps ? logits.shift_of(turn, step_of(turn)) : 0; };
  logits.keep_vector(0, vector_of(0));
  logits.keep_vector(1, vector_of(1));
  __syncthreads();
  logits.keep_shift(0, shift_of(0));
  logits.hold_keys();
  for (int turn = 0; turn < steps; ++turn) {
    const int step = step_of(turn);
    if (turn + 1 < steps) logits.stage_queries(turn + 1);
    const float next_shift = shift_of(turn + 1);
    const int next_vector = vector_of(turn + 2);
    const auto newer = [&](int n, int columns) {
      return Newer{args.window - logits.first_query(step) - (n * 8 >> work.head_shift), work.head_shift, columns};
    };
    if (Max == GroupMax::kNone && logits.sees_all(step) && statistics.takes_whole(newer(0, Tile::kQueries), write)) {
      logits.template visit_probabilities<Statistics::kNewestFirst, true>(
          turn, step, largest, [&](int, const float(&p)[kM][2][4]) { statistics.add(p); });
    } else {
      logits.template visit_probabilities<Statistics::kNewestFirst, false>(
          turn, step, largest, [&](int n, const float(&p)[kM][2][4]) {
            const Newer of_these = newer(n, 16);
            if (statistics.takes_whole(of_these, write)) {
              statistics.add(p);
            } else {
              statistics.split(of_these, p, write);
            }
          });
    }
    logits.keep_shift(turn + 1, next_shift);
    logits.keep_vector(turn + 2, next_vector);
    wait_copies<0>();
    __syncthreads();
  }
  statistics.finish(write);
}

template <int D, GroupMax Max, class Statistics = Mean<KeyTile<D>::kM>>
void score(const WindowAttentionArgs& args) {
  using Tile = KeyTile<D>;
  const int group = args.q_heads / args.cache.kv_heads;
  // As many heads a tile as the group has, but where its logits are maximised no more than leave room for the window,
  // because what heads share is computed once a head; where its probabilities are, heads do not lie side by side.
  const int room = Max == GroupMax::kNone     ? kTileColumns
                   : Max == GroupMax::kLogits ? std::max(1, kTileColumns / args.window)
                                              : 1;
  const int heads = std::min(group, room);
  Work work{.queries = args.queries.as<bf16>(),
            .shifts = nullptr,
            .tiles = ceil_div(args.cache.max_length, Tile::kKeys),
            .group = group,
            .vectors = Max == GroupMax::kLogits ? args.window : group * args.window,
            .head_shift = heads == 1   ? 0
                          : heads == 2 ? 1
                          : heads <= 4 ? 2
                                       : 3,
            .head_tiles = 0};
  work.head_tiles = static_cast<int>(ceil_div(group, work.heads()));
  const Scratch<float> shifts(args.log_sums ? 0 : args.cache.rows * work.vectors);
  if (!args.log_sums) find_shifts<D, Max>(args, shifts.data());
  work.shifts = shifts.data();
  const int64_t blocks = args.cache.rows * work.tiles * (Max == GroupMax::kNone ? work.head_tiles : 1);
  launch_early(add_probabilities<D, Max, Statistics>, blocks, Tile::kThreads, Logits<D, Max>::kSharedBytes, args, work);
}

}  // namespace

void window_attention(const WindowAttentionArgs& args) {
  check_cache(args.cache);
  check_vectors(args.queries.as<bf16>(), args.cache.head_dim);
  KV_CHECK(args.window > 0 && args.q_heads % args.cache.kv_heads == 0);
  check_planes(args);
  with_width(args.cache.head_dim, [&](auto width) {
    switch (args.mode) {
      case Mode::kPerQueryHead:
        return score<width, GroupMax::kNone>(args);
      case Mode::kGroupMaxOlder:
        return score<width, GroupMax::kLogits>(args);
      case Mode::kGroupMaxProbabilityOlder:
        return score<width, GroupMax::kProbabilities>(args);
      case Mode::kSuffixSums:
        return args.suffix_count == 3 ? score<width, GroupMax::kNone, SuffixSums<KeyTile<width>::kM, 3>>(args)
                                      : score<width, GroupMax::kNone, SuffixSums<KeyTile<width>::kM, 4>>(args);
      case Mode::kExtremes:
        return score<width, GroupMax::kNone, Extremes<KeyTile<width>::kM>>(args);
    }
  });
}

}  // namespace kv::cuda
