#include "kernels/window_attention.h"

#include "kernels/cuda/mma.cuh"

namespace kv::cuda {

namespace {

using Mode = WindowAttentionArgs::Mode;

constexpr float kLog2E = 1.4426950408889634f;

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
  int vectors;  // a row: group · window, or window
};

// How many slots take part: all, or those older than the window.
template <bool MaxOfGroup>
__device__ int64_t columns_of(const WindowAttentionArgs& args, int64_t row) {
  return args.cache.lengths[row] - (MaxOfGroup ? args.window : 0);
}

// One tile of keys against up to 64 of the window's queries: sums = scaled logits, −∞ where a query does not see a key.
template <int D, bool MaxOfGroup>
struct Logits {
  using Tile = KeyTile<D>;
  const WindowAttentionArgs& args;
  const Work& work;
  bf16* staged;
  int64_t row;
  int64_t first_slot;
  HeldRows<D, Tile::kM> keys;

  __device__ void hold_keys(int64_t columns) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    stage_rows<D>(staged, Tile::kKeys, args.cache.head_dim, threadIdx.x, Tile::kThreads,
                  [&](int r) { return first_slot + r < columns ? key_of(args.cache, row, first_slot + r) : nullptr; });
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    keys.load(staged, warp * 16 * Tile::kM, lane);
  }

  __device__ void of_head(int first_query, int g, float (&sums)[Tile::kM][8][4]) {
    const int dim = args.cache.head_dim;
    const int64_t sequence = row / args.cache.kv_heads;
    const int64_t head = row % args.cache.kv_heads * work.group + g;
    __syncthreads();  // the previous tile has been used
    stage_rows<D>(staged, Tile::kQueries, dim, threadIdx.x, Tile::kThreads, [&](int r) {
      return first_query + r < args.window
                 ? work.queries + ((sequence * args.window + first_query + r) * args.q_heads + head) * dim
                 : nullptr;
    });
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    keys.times(staged, threadIdx.x % 32, sums);
  }

  __device__ int64_t slot(int m, int e) const {
    return first_slot + threadIdx.x / 32 * 16 * Tile::kM + m * 16 + threadIdx.x % 32 / 4 + e / 2 * 8;
  }
  __device__ static int query(int n, int e) { return n * 8 + threadIdx.x % 4 * 2 + e % 2; }

  __device__ void compute(int first_query, int g, float (&sums)[Tile::kM][8][4]) {
    of_head(first_query, MaxOfGroup ? 0 : g, sums);
    if constexpr (MaxOfGroup) {
      for (int other = 1; other < work.group; ++other) {
        float more[Tile::kM][8][4];
        of_head(first_query, other, more);
#pragma unroll
        for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
          for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[m][n][e] = fmaxf(sums[m][n][e], more[m][n][e]);
          }
        }
      }
    }
    const int64_t length = args.cache.lengths[row];
    const int64_t columns = columns_of<MaxOfGroup>(args, row);
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int64_t newest = MaxOfGroup ? columns - 1 : length - args.window + first_query + query(n, e);
          sums[m][n][e] =
              slot(m, e) < columns && slot(m, e) <= newest ? sums[m][n][e] * (args.scale * kLog2E) : -kInfinity;
        }
      }
    }
  }
};

// Blocks of (row, key tile, query head): query heads of a tile run next to each other and share its keys in L2.
template <int D, bool MaxOfGroup>
__device__ bool place_block(const WindowAttentionArgs& args, const Work& work, int64_t& row, int64_t& tile, int& g) {
  const int heads = MaxOfGroup ? 1 : work.group;
  g = blockIdx.x % heads;
  tile = blockIdx.x / heads % work.tiles;
  row = blockIdx.x / heads / work.tiles;
  if (!is_due(args.rows_due, row)) return false;
  KV_DEVICE_CHECK(args.window <= args.cache.lengths[row]);
  return tile * KeyTile<D>::kKeys < columns_of<MaxOfGroup>(args, row);
}

template <int D, bool MaxOfGroup>
__global__ void __launch_bounds__(KeyTile<D>::kThreads) partial_normalisers(WindowAttentionArgs args, Work work) {
  using Tile = KeyTile<D>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float2 by_warp[4][Tile::kQueries];
  int64_t row, tile;
  int g;
  if (!place_block<D, MaxOfGroup>(args, work, row, tile, g)) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Logits<D, MaxOfGroup> logits{args, work, reinterpret_cast<bf16*>(shared), row, tile * Tile::kKeys, {}};
  logits.hold_keys(columns_of<MaxOfGroup>(args, row));
  for (int first = 0; first < args.window; first += Tile::kQueries) {
    float x[Tile::kM][8][4];
    logits.compute(first, g, x);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        float largest = -kInfinity;
#pragma unroll
        for (int m = 0; m < Tile::kM; ++m) largest = fmaxf(largest, fmaxf(x[m][n][column], x[m][n][column + 2]));
        for (int offset = 4; offset < 32; offset *= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, offset));
        }
        const float from = largest == -kInfinity ? 0.0f : largest;
        float sum = 0;
#pragma unroll
        for (int m = 0; m < Tile::kM; ++m) sum += exp2f(x[m][n][column] - from) + exp2f(x[m][n][column + 2] - from);
        for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(kWarp, sum, offset);
        if (lane < 4) by_warp[warp][logits.query(n, column)] = {largest, sum};
      }
    }
    __syncthreads();
    const int query = first + threadIdx.x;
    if (threadIdx.x < Tile::kQueries && query < args.window) {
      float2 total = by_warp[0][threadIdx.x];
      for (int w = 1; w < 4; ++w) total.x = fmaxf(total.x, by_warp[w][threadIdx.x].x);
      total.y = 0;
      for (int w = 0; w < 4; ++w) {
        const float2 part = by_warp[w][threadIdx.x];
        if (part.y > 0) total.y += part.y * exp2f(part.x - total.x);
      }
      work.partial[((row * work.vectors) + (MaxOfGroup ? 0 : g * args.window) + query) * work.tiles + tile] = total;
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

// scores = mean over the window's queries of their probabilities. A key's sum stays in one warp: in-thread over the
// queries, tile by tile, then over the four lanes that share its row.
template <int D, bool MaxOfGroup>
__global__ void __launch_bounds__(KeyTile<D>::kThreads) mean_probabilities(WindowAttentionArgs args, Work work) {
  using Tile = KeyTile<D>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Normaliser normalisers[Tile::kQueries];
  int64_t row, tile;
  int g;
  if (!place_block<D, MaxOfGroup>(args, work, row, tile, g)) return;
  Logits<D, MaxOfGroup> logits{args, work, reinterpret_cast<bf16*>(shared), row, tile * Tile::kKeys, {}};
  const int64_t columns = columns_of<MaxOfGroup>(args, row);
  logits.hold_keys(columns);
  float totals[Tile::kM][2] = {};
  for (int first = 0; first < args.window; first += Tile::kQueries) {
    float x[Tile::kM][8][4];
    __syncthreads();  // the previous tile's normalisers have been used
    const int64_t vector = row * work.vectors + (MaxOfGroup ? 0 : g * args.window) + first + threadIdx.x;
    if (threadIdx.x < Tile::kQueries) {
      // A query beyond the window weighs nothing.
      normalisers[threadIdx.x] =
          first + static_cast<int>(threadIdx.x) < args.window ? work.normalisers[vector] : Normaliser{0, 0};
    }
    logits.compute(first, g, x);
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const Normaliser normaliser = normalisers[logits.query(n, e)];
            sum += exp2f(x[m][n][2 * half + e] - normaliser.largest) * normaliser.inverse_sum;
          }
        }
        totals[m][half] += sum;
      }
    }
  }
  float* scores = args.scores + (MaxOfGroup ? row : row * work.group + g) * args.pitch;
#pragma unroll
  for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = totals[m][half];
      total += __shfl_xor_sync(kWarp, total, 1);
      total += __shfl_xor_sync(kWarp, total, 2);
      const int64_t slot = logits.slot(m, 2 * half);
      if (threadIdx.x % 4 == 0 && slot < columns) scores[slot] = total / static_cast<float>(args.window);
    }
  }
}

template <int D, bool MaxOfGroup>
void score(const WindowAttentionArgs& args) {
  using Tile = KeyTile<D>;
  const int group = args.q_heads / args.cache.kv_heads;
  Work work{.queries = args.queries.as<bf16>(),
            .partial = nullptr,
            .normalisers = nullptr,
            .tiles = ceil_div(args.cache.max_length, Tile::kKeys),
            .group = group,
            .vectors = MaxOfGroup ? args.window : group * args.window};
  const int64_t vectors = args.cache.rows * work.vectors;
  const Scratch<float2> partial(vectors * work.tiles);
  const Scratch<Normaliser> normalisers(vectors);
  work.partial = partial.data();
  work.normalisers = normalisers.data();
  const int64_t blocks = args.cache.rows * work.tiles * (MaxOfGroup ? 1 : group);
  const size_t bytes = std::max(Tile::kKeys, Tile::kQueries) * kStride<D> * sizeof(bf16);
  launch(partial_normalisers<D, MaxOfGroup>, blocks, Tile::kThreads, bytes, args, work);
  launch(combine_normalisers<D, MaxOfGroup>, ceil_div(vectors, 4), 128, 0, args, work);
  launch(mean_probabilities<D, MaxOfGroup>, blocks, Tile::kThreads, bytes, args, work);
}

}  // namespace

void window_attention(const WindowAttentionArgs& args) {
  check_cache(args.cache);
  check_vectors(args.queries.as<bf16>(), args.cache.head_dim);
  KV_CHECK(args.window > 0 && args.q_heads % args.cache.kv_heads == 0);
  with_width(args.cache.head_dim, [&](auto width) {
    if (args.mode == Mode::per_query_head) {
      score<width, false>(args);
    } else {
      score<width, true>(args);
    }
  });
}

}  // namespace kv::cuda
