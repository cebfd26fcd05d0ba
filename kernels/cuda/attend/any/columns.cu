#include "kernels/cuda/attend/attend.cuh"

// Column statistics of any number of queries at any width, on any card. A thread block keeps its keys in registers and
// streams the queries that see them: a column's sum and maximum never leave its four lanes until the end. Sums go by
// tile of 64 queries first, then over tiles, against the rounding of long chains.

namespace kv::cuda {

namespace {

// The statistics of the lane's two keys in each of the warp's M tiles of 16, over the queries that passed by.
template <int M>
struct Columns {
  float sums[M][2] = {};
  float largest[M][2] = {};
};

// Adds the probabilities of a tile of queries. seen_from(row) is the first query that sees the row's key;
// until[m][half] is the first that no longer does, of the lane's keys.
template <int D, class SeenFrom>
__device__ __forceinline__ void add_tile(const float (&logits)[KeyTile<D>::kM][8][4], const Softmax* softmax,
                                         float scale, bool masked, int lane, const SeenFrom& seen_from,
                                         const int (&until)[KeyTile<D>::kM][2], int first,
                                         Columns<KeyTile<D>::kM>& columns) {
#pragma unroll
  for (int m = 0; m < KeyTile<D>::kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = seen_from(m * 16 + lane / 4 + 8 * half);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int query = n * 8 + lane % 4 * 2 + e;
          const Softmax of = softmax[query];
          float probability = exp2_fast(logits[m][n][2 * half + e] * scale - of.largest) * of.sum;
          if (masked && (query < from || first + query >= until[m][half])) probability = 0;
          sum += probability;
          columns.largest[m][half] = fmaxf(columns.largest[m][half], probability);
        }
      }
      columns.sums[m][half] += sum;
    }
  }
}

template <int D>
__global__ void __launch_bounds__(KeyTile<D>::kThreads)
    column_statistics(AttendArgs args, AttendWork work, int64_t key_tiles) {
  using Tile = KeyTile<D>;
  constexpr int M = Tile::kM;
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* staged = reinterpret_cast<bf16*>(shared);  // two tiles of queries; at first the keys
  __shared__ Softmax softmax[2][Tile::kQueries];
  const PagedView& cache = args.cache;
  const int dim = cache.head_dim;
  // Query heads of a group run next to each other and share its keys in L2.
  int64_t block_number = blockIdx.x;
  const int g = static_cast<int>(block_number % work.group);
  block_number /= work.group;
  const int64_t first_slot = block_number % key_tiles * Tile::kKeys;
  block_number /= key_tiles;
  const AttendBlock block(args, work, block_number / cache.kv_heads, block_number % cache.kv_heads);
  block.check();
  const int64_t length = block.base + block.segment.count;
  if (block.segment.count == 0 || first_slot >= length) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  stage_rows<D>(staged, Tile::kKeys, dim, threadIdx.x, Tile::kThreads,
                [&](int r) { return first_slot + r < length ? key_of(cache, block.row, first_slot + r) : nullptr; });
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  HeldRows<D, M> keys;
  keys.load(staged, warp * 16 * M, lane);
  __syncthreads();

  const int count = block.segment.count;
  const auto load = [&](int first, int buffer) {
    stage_rows<D>(staged + buffer * Tile::kQueries * D, Tile::kQueries, dim, threadIdx.x, Tile::kThreads, [&](int r) {
      const int pair = (first + r) * work.group + g;
      return first + r < count ? work.queries + block.vector(args, work, pair) * dim : nullptr;
    });
    commit_copies();
    if (threadIdx.x < Tile::kQueries) {
      const int query = first + static_cast<int>(threadIdx.x);
      // A query beyond the block weighs nothing.
      softmax[buffer][threadIdx.x] =
          query < count ? work.softmax[block.scratch(args, work, query * work.group + g)] : Softmax{0, 0};
    }
  };
  const float scale = args.scale * kToLog2;
  const Expiries expiries = block.expiries(args);
  const bool may_expire = expiries.may(static_cast<int>(first_slot), static_cast<int>(first_slot) + Tile::kKeys);
  int until[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = static_cast<int>(first_slot) + warp * 16 * M + m * 16 + lane / 4 + 8 * half;
      until[m][half] = expiries.of(slot) - block.segment.first_position;  // kNeverExpires less a position: still late
    }
  }
  Columns<M> columns;
  // The first query that sees any of these keys.
  int first = static_cast<int>(max(int64_t{0}, first_slot - block.base)) / Tile::kQueries * Tile::kQueries;
  load(first, 0);
  for (int buffer = 0; first < count; first += Tile::kQueries, buffer = 1 - buffer) {
    wait_copies<0>();
    __syncthreads();
    if (first + Tile::kQueries < count) load(first + Tile::kQueries, 1 - buffer);
    float logits[M][8][4];
    keys.template times<8>(staged + buffer * Tile::kQueries * D, lane, logits);  // qk
    add_tile<D>(
        logits, softmax[buffer], scale, may_expire || first_slot + Tile::kKeys - 1 > block.base + first, lane,
        [&](int row) { return static_cast<int>(first_slot + warp * 16 * M + row - block.base - first); }, until, first,
        columns);
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_four_lanes(columns.sums[m][half]);
      float largest = columns.largest[m][half];
      largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 2));
      const int64_t slot = first_slot + warp * 16 * M + m * 16 + lane / 4 + 8 * half;
      if (lane % 4 != 0 || slot >= length) continue;
      const int64_t vector = block.row * work.group + g;
      if (args.column_sums) args.column_sums.row(vector)[slot] = sum;
      if (args.column_max) args.column_max.row(vector)[slot] = largest;
    }
  }
}

template <int D>
void run(const AttendArgs& args, const AttendWork& work) {
  using Tile = KeyTile<D>;
  const int64_t key_tiles = ceil_div(args.cache.max_length, Tile::kKeys);
  const size_t bytes = 2 * Tile::kQueries * D * sizeof(bf16);
  static_assert(Tile::kKeys <= 2 * Tile::kQueries);
  launch(column_statistics<D>, args.segment_count * args.cache.kv_heads * key_tiles * work.group, Tile::kThreads, bytes,
         args, work, key_tiles);
}

}  // namespace

void run_any_columns(const AttendArgs& args, const AttendWork& work) {
  with_width(args.cache.head_dim, [&](auto width) { run<width>(args, work); });
}

}  // namespace kv::cuda
