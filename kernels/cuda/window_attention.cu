#include "kernels/window_attention.h"

#include "kernels/cuda/stage_keys.cuh"

namespace kv::cuda {

namespace {

using Mode = WindowAttentionArgs::Mode;

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kTileColumns = KeyTile<128>::kQueries;  // whatever the width

// A vector of logits: one query of one query head, or, where the group is maximised away, one query of one KV head.
// Its softmax is e^(x − largest) · inverse_sum, x in units of log 2.
struct Normaliser {
  float largest;
  float inverse_sum;
};

struct Work {
  const bf16* queries;
  float2* partial;          // [rows, vectors, tiles]: largest and sum over one tile of keys
  Normaliser* normalisers;  // [rows, vectors]
  int64_t tiles;
  int group;
  int vectors;     // a row: group · window, or window
  int head_shift;  // 2^head_shift query heads share a tile
  int head_tiles;  // that cover the group

  __host__ __device__ int heads() const { return 1 << head_shift; }
  __host__ __device__ int tile_queries() const { return kTileColumns >> head_shift; }  // of a tile
};

// How many slots take part: all, or those older than the window.
template <bool MaxOfGroup>
__device__ int64_t columns_of(const WindowAttentionArgs& args, int64_t row) {
  return args.cache.lengths[row] - (MaxOfGroup ? args.window : 0);
}

// One tile of keys against a tile of the window's queries. Its 64 columns are the pairs (query, head), heads fastest,
// so that a short window, too, fills them and the keys are read once for the group: sums = scaled logits, −∞ where a
// query does not see a key. Where the group is maximised away, all heads of a query have the largest logit.
template <int D, bool MaxOfGroup>
struct Logits {
  using Tile = KeyTile<D>;
  static constexpr size_t kSharedBytes = (Tile::kKeys + Tile::kQueries) * D * sizeof(bf16);
  const WindowAttentionArgs& args;
  const Work& work;
  bf16* staged;  // queries, then keys
  int64_t row;
  int64_t first_slot;
  HeldRows<D, Tile::kM> keys;

  // `head_tile` is of the first queries.
  __device__ void hold_keys(int64_t columns, int head_tile) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bf16* tile = staged + Tile::kQueries * D;
    stage_keys<D, Tile::kKeys>(tile, args.cache, row, static_cast<int>(first_slot), static_cast<int>(columns),
                               threadIdx.x, Tile::kThreads);
    stage_queries(0, head_tile);
    wait_copies<0>();
    __syncthreads();
    keys.load(tile, warp * 16 * Tile::kM, lane);
  }

  __device__ void stage_queries(int first_query, int head_tile) {
    const int dim = args.cache.head_dim;
    const int64_t sequence = row / args.cache.kv_heads;
    const int64_t first_head = row % args.cache.kv_heads * work.group;
    stage_rows<D>(staged, Tile::kQueries, dim, threadIdx.x, Tile::kThreads, [&](int r) {
      const int query = first_query + (r >> work.head_shift), g = head_of(head_tile, r);
      return query < args.window && g < work.group
                 ? work.queries + ((sequence * args.window + query) * args.q_heads + first_head + g) * dim
                 : nullptr;
    });
    commit_copies();
  }

  // Products of the staged queries, combined with what is there; −∞ for heads that the group does not have.
  template <class Combine>
  __device__ void of_heads(int head_tile, float (&sums)[Tile::kM][8][4], const Combine& combine) {
    const bool all_present = (head_tile + 1) << work.head_shift <= work.group;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      float products[Tile::kM][2][4];
      keys.times_sixteen(staged, n * 8, threadIdx.x % 32, products);
#pragma unroll
      for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const bool is_present = all_present || head_of(head_tile, column(n + i, e)) < work.group;
            sums[m][n + i][e] = combine(sums[m][n + i][e], is_present ? products[m][i][e] : -kInfinity);
          }
        }
      }
    }
  }

  __device__ void stage_again(int first_query, int head_tile) {
    __syncthreads();  // the previous tile has been used
    stage_queries(first_query, head_tile);
    wait_copies<0>();
    __syncthreads();
  }

  __device__ int64_t slot(int m, int e) const {
    return first_slot + threadIdx.x / 32 * 16 * Tile::kM + m * 16 + threadIdx.x % 32 / 4 + e / 2 * 8;
  }
  __device__ static int column(int n, int e) { return n * 8 + threadIdx.x % 4 * 2 + e % 2; }
  __device__ int head_of(int head_tile, int column) const {
    return (head_tile << work.head_shift) + (column & (work.heads() - 1));
  }

  // The first tile's queries have been staged with the keys.
  __device__ void compute(int first_query, int head_tile, float (&sums)[Tile::kM][8][4]) {
    if (first_query > 0) stage_again(first_query, head_tile);
    of_heads(head_tile, sums, [](float, float product) { return product; });
    if constexpr (MaxOfGroup) {
      for (int other = 1; other < work.head_tiles; ++other) {
        stage_again(first_query, other);
        of_heads(other, sums, Larger());
      }
#pragma unroll
      for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) largest_of_heads(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
        }
      }
    }
    const float scale = args.scale * kLog2E;
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[m][n][e] *= scale;
      }
    }
    // The newest slot that query 0 of the tile sees; later ones of the window see one more each.
    const int newest = static_cast<int>(args.cache.lengths[row]) - args.window + (MaxOfGroup ? -1 : first_query);
    if (static_cast<int>(first_slot) + Tile::kKeys <= newest + 1) return;  // all see all
    const int columns = static_cast<int>(columns_of<MaxOfGroup>(args, row));
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int seen = MaxOfGroup ? newest : min(columns - 1, newest + (column(n, e) >> work.head_shift));
          if (static_cast<int>(slot(m, e)) > seen) sums[m][n][e] = -kInfinity;
        }
      }
    }
  }

  // A query's heads are neighbours: the two columns of a lane, then those of the lanes beside it.
  __device__ void largest_of_heads(float& a, float& b) const {
    if (work.head_shift == 0) return;
    a = b = fmaxf(a, b);
    for (int shift = 1; shift < work.head_shift; ++shift) a = b = fmaxf(a, __shfl_xor_sync(kWarp, a, shift));
  }
};

// Blocks of (row, key tile, tile of heads): the latter run next to each other and share the keys in L2.
template <int D, bool MaxOfGroup>
__device__ bool place_block(const WindowAttentionArgs& args, const Work& work, int64_t& row, int64_t& tile,
                            int& head_tile) {
  const int head_tiles = MaxOfGroup ? 1 : work.head_tiles;
  head_tile = blockIdx.x % head_tiles;
  tile = blockIdx.x / head_tiles % work.tiles;
  row = blockIdx.x / head_tiles / work.tiles;
  if (!is_due(args.rows_due, row)) return false;
  KV_DEVICE_CHECK(args.window <= args.cache.lengths[row]);
  return tile * KeyTile<D>::kKeys < columns_of<MaxOfGroup>(args, row);
}

// Which of a row's vectors of logits a column belongs to; −1 for none. Of a group that is maximised away, one head
// stands for all.
template <int D, bool MaxOfGroup>
__device__ int vector_of(const WindowAttentionArgs& args, const Work& work, int first_query, int head_tile,
                         int column) {
  const int query = first_query + (column >> work.head_shift);
  if (query >= args.window) return -1;
  if (MaxOfGroup) return query;
  const int g = (head_tile << work.head_shift) + (column & (work.heads() - 1));
  return g < work.group ? g * args.window + query : -1;
}

template <int D, bool MaxOfGroup>
__global__ void __launch_bounds__(KeyTile<D>::kThreads, 3) partial_normalisers(WindowAttentionArgs args, Work work) {
  using Tile = KeyTile<D>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float2 by_warp[4][Tile::kQueries];
  int64_t row, tile;
  int head_tile;
  if (!place_block<D, MaxOfGroup>(args, work, row, tile, head_tile)) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Logits<D, MaxOfGroup> logits{args, work, reinterpret_cast<bf16*>(shared), row, tile * Tile::kKeys, {}};
  logits.hold_keys(columns_of<MaxOfGroup>(args, row), head_tile);
  for (int first = 0; first < args.window; first += work.tile_queries()) {
    float x[Tile::kM][8][4];
    logits.compute(first, head_tile, x);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float largest = -kInfinity;
#pragma unroll
        for (int m = 0; m < Tile::kM; ++m) largest = fmaxf(largest, fmaxf(x[m][n][e], x[m][n][e + 2]));
        for (int offset = 4; offset < 32; offset *= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, offset));
        }
        const float from = largest == -kInfinity ? 0.0f : largest;
        float sum = 0;
#pragma unroll
        for (int m = 0; m < Tile::kM; ++m) sum += exp2_fast(x[m][n][e] - from) + exp2_fast(x[m][n][e + 2] - from);
        for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(kWarp, sum, offset);
        if (lane < 4) by_warp[warp][logits.column(n, e)] = {largest, sum};
      }
    }
    __syncthreads();
    const int vector = threadIdx.x < Tile::kQueries
                           ? vector_of<D, MaxOfGroup>(args, work, first, head_tile, static_cast<int>(threadIdx.x))
                           : -1;
    if (vector >= 0) {
      float2 total = by_warp[0][threadIdx.x];
      for (int w = 1; w < 4; ++w) total.x = fmaxf(total.x, by_warp[w][threadIdx.x].x);
      total.y = 0;
      for (int w = 0; w < 4; ++w) {
        const float2 part = by_warp[w][threadIdx.x];
        if (part.y > 0) total.y += part.y * exp2f(part.x - total.x);
      }
      work.partial[(row * work.vectors + vector) * work.tiles + tile] = total;
    }
    __syncthreads();
  }
}

// One warp a vector of logits, over the tiles of its row.
template <int D, bool MaxOfGroup>
__global__ void combine_normalisers(WindowAttentionArgs args, Work work) {
  const int64_t vector = blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32;
  const int64_t row = vector / work.vectors;
  if (row >= args.cache.rows || !is_due(args.rows_due, row)) return;
  const int64_t columns = columns_of<MaxOfGroup>(args, row);
  const int64_t used = (columns + KeyTile<D>::kKeys - 1) / KeyTile<D>::kKeys;
  const int lane = threadIdx.x % 32;
  const float2* partial = work.partial + vector * work.tiles;
  float largest = -kInfinity;
  for (int64_t tile = lane; tile < used; tile += 32) largest = fmaxf(largest, partial[tile].x);
  largest = warp_reduce(largest, Larger());
  float sum = 0;
  for (int64_t tile = lane; tile < used; tile += 32) {
    if (partial[tile].y > 0) sum += partial[tile].y * exp2f(partial[tile].x - largest);
  }
  sum = warp_reduce(sum, Add());
  if (lane == 0 && used > 0) work.normalisers[vector] = {largest, 1 / sum};
}

// What add_probabilities makes of a slot's probabilities: a mean, sums over several suffixes of the queries, or the
// largest, the smallest and the sum.
struct Mean {
  static constexpr int kCount = 1;
  __device__ static float start(int) { return 0; }
  __device__ static void take(const WindowAttentionArgs&, int, float probability, float (&values)[1][4], int e) {
    values[0][e] += probability;
  }
  __device__ static float combine(int, float a, float b) { return a + b; }
};

template <int Suffixes>
struct SuffixSums {
  static constexpr int kCount = Suffixes;
  __device__ static float start(int) { return 0; }
  __device__ static void take(const WindowAttentionArgs& args, int newer, float probability,
                              float (&values)[Suffixes][4], int e) {
#pragma unroll
    for (int k = 0; k < Suffixes; ++k) {
      if (newer <= args.suffixes[k]) values[k][e] += probability;
    }
  }
  __device__ static float combine(int, float a, float b) { return a + b; }
};

struct Extremes {
  static constexpr int kCount = WindowAttentionArgs::kExtremeCount;
  __device__ static float start(int k) { return k == 1 ? kInfinity : 0; }
  __device__ static void take(const WindowAttentionArgs&, int newer, float probability, float (&values)[kCount][4],
                              int e) {
    if (newer <= 0) return;  // beyond the window
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k][e] = combine(k, values[k][e], probability);
  }
  __device__ static float combine(int k, float a, float b) {
    return k == 0 ? fmaxf(a, b) : k == 1 ? fminf(a, b) : a + b;
  }
};

// Where a head's k-th statistic goes.
template <bool MaxOfGroup, class Statistics>
__device__ int64_t vector_at(const WindowAttentionArgs& args, const Work& work, int64_t row, int k, int g) {
  if (MaxOfGroup) return row;
  return Statistics::kCount > 1 ? row * args.planes + k * work.group + g : row * work.group + g;
}

// scores = statistics of the window's queries' probabilities. A lane's two columns are of the same two heads in all
// tiles of eight: it combines these, tile by tile of queries; then the lanes that share them combine theirs.
template <int D, bool MaxOfGroup, class Statistics>
__global__ void __launch_bounds__(KeyTile<D>::kThreads, Statistics::kCount == 1 ? 3 : 2)
    add_probabilities(WindowAttentionArgs args, Work work) {
  using Tile = KeyTile<D>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Normaliser normalisers[Tile::kQueries];
  int64_t row, tile;
  int head_tile;
  if (!place_block<D, MaxOfGroup>(args, work, row, tile, head_tile)) return;
  Logits<D, MaxOfGroup> logits{args, work, reinterpret_cast<bf16*>(shared), row, tile * Tile::kKeys, {}};
  const int64_t columns = columns_of<MaxOfGroup>(args, row);
  logits.hold_keys(columns, head_tile);
  constexpr int kCount = Statistics::kCount;
  float totals[kCount][Tile::kM][4];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int i = 0; i < 4 * Tile::kM; ++i) totals[k][i / 4][i % 4] = Statistics::start(k);
  }
  for (int first = 0; first < args.window; first += work.tile_queries()) {
    float x[Tile::kM][8][4];
    if (first > 0) __syncthreads();  // the previous tile's normalisers have been used
    if (threadIdx.x < Tile::kQueries) {
      const int vector = vector_of<D, MaxOfGroup>(args, work, first, head_tile, static_cast<int>(threadIdx.x));
      // What is beyond the window weighs nothing.
      normalisers[threadIdx.x] = vector >= 0 ? work.normalisers[row * work.vectors + vector] : Normaliser{0, 0};
    }
    __syncthreads();
    logits.compute(first, head_tile, x);
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
      float values[kCount][4];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) values[k][e] = Statistics::start(k);
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const Normaliser normaliser = normalisers[logits.column(n, e)];
          const float probability = exp2_fast(x[m][n][e] - normaliser.largest) * normaliser.inverse_sum;
          const int newer = args.window - first - (logits.column(n, e) >> work.head_shift);  // queries from this one on
          Statistics::take(args, newer, probability, values, e);
        }
      }
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) totals[k][m][e] = Statistics::combine(k, totals[k][m][e], values[k][e]);
      }
    }
  }
  // Where the group is maximised away all heads have the same sum; adding them up is exact, as is their number.
  const int heads = MaxOfGroup ? 1 : work.heads();
  const auto weight = static_cast<float>(kCount > 1 ? 1 : MaxOfGroup ? args.window << work.head_shift : args.window);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& a = totals[k][m][2 * half];
        float& b = totals[k][m][2 * half + 1];
        if (heads == 1) a = b = Statistics::combine(k, a, b);
        for (int lanes = max(1, heads / 2); lanes < 4; lanes *= 2) {
          a = Statistics::combine(k, a, __shfl_xor_sync(kWarp, a, lanes));
          b = Statistics::combine(k, b, __shfl_xor_sync(kWarp, b, lanes));
        }
        const int64_t slot = logits.slot(m, 2 * half);
        if (slot >= columns) continue;
        for (int e = 0; e < 2; ++e) {
          const int h = threadIdx.x % 4 * 2 + e, g = (head_tile << work.head_shift) + h;
          if (h >= heads || (!MaxOfGroup && g >= work.group)) continue;
          args.scores.row(vector_at<MaxOfGroup, Statistics>(args, work, row, k, g))[slot] =
              totals[k][m][2 * half + e] / weight;
        }
      }
    }
  }
}

template <int D, bool MaxOfGroup, class Statistics = Mean>
void score(const WindowAttentionArgs& args) {
  using Tile = KeyTile<D>;
  const int group = args.q_heads / args.cache.kv_heads;
  // As many heads a tile as the group has, but where the group is maximised away no more than leave room for the
  // window: what heads share is computed once a head.
  const int room = MaxOfGroup ? std::max(1, kTileColumns / args.window) : kTileColumns;
  const int heads = std::min(group, room);
  Work work{.queries = args.queries.as<bf16>(),
            .partial = nullptr,
            .normalisers = nullptr,
            .tiles = ceil_div(args.cache.max_length, Tile::kKeys),
            .group = group,
            .vectors = MaxOfGroup ? args.window : group * args.window,
            .head_shift = heads == 1   ? 0
                          : heads == 2 ? 1
                          : heads <= 4 ? 2
                                       : 3,
            .head_tiles = 0};
  work.head_tiles = static_cast<int>(ceil_div(group, work.heads()));
  const int64_t vectors = args.cache.rows * work.vectors;
  const Scratch<float2> partial(vectors * work.tiles);
  const Scratch<Normaliser> normalisers(vectors);
  work.partial = partial.data();
  work.normalisers = normalisers.data();
  const int64_t blocks = args.cache.rows * work.tiles * (MaxOfGroup ? 1 : work.head_tiles);
  constexpr size_t bytes = Logits<D, MaxOfGroup>::kSharedBytes;
  launch(partial_normalisers<D, MaxOfGroup>, blocks, Tile::kThreads, bytes, args, work);
  launch(combine_normalisers<D, MaxOfGroup>, ceil_div(vectors, 4), 128, 0, args, work);
  launch(add_probabilities<D, MaxOfGroup, Statistics>, blocks, Tile::kThreads, bytes, args, work);
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
        return score<width, false>(args);
      case Mode::kGroupMaxOlder:
        return score<width, true>(args);
      case Mode::kSuffixSums:
        return args.suffix_count == 3 ? score<width, false, SuffixSums<3>>(args)
                                      : score<width, false, SuffixSums<4>>(args);
      case Mode::kExtremes:
        return score<width, false, Extremes>(args);
    }
  });
}

}  // namespace kv::cuda
