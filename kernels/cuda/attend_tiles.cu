#include "kernels/cuda/attend.cuh"

namespace kv::cuda {

namespace {

// FlashAttention-2's schedule over pages, for any card and any width.
constexpr int kThreads = 128;
constexpr int kKeys = 64;  // of a step

// 64·M pairs a thread block, 16·M a warp. With M = 2 each fragment of keys and values that a warp reads from shared
// memory serves two products, without which shared memory would be the limit.
template <int D, int M>
struct Tiles {
  static constexpr int kPairs = 64 * M;
  static constexpr size_t kSharedBytes = (kPairs + 4 * kKeys) * D * sizeof(bf16);
};

template <int D, int M>
__global__ void __launch_bounds__(kThreads, D <= 128 ? 2 : 1) attend_tiles(AttendArgs args, AttendWork work) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* query_tile = reinterpret_cast<bf16*>(shared);
  bf16* key_tiles = query_tile + Tiles<D, M>::kPairs * D;  // two, then two of values
  bf16* value_tiles = key_tiles + 2 * kKeys * D;
  const PagedView& cache = args.cache;
  const int dim = cache.head_dim;

  // Late tiles see the most keys: they start first. The tiles of a KV head run together and share its keys in L2.
  int64_t rest = blockIdx.x;
  const int piece = static_cast<int>(rest % work.pieces);
  rest /= work.pieces;
  const int64_t tile = work.tiles - 1 - rest % work.tiles;
  rest /= work.tiles;
  const AttendBlock block(args, work, rest / cache.kv_heads, rest % cache.kv_heads);
  block.check();
  // Slots and pairs fit 32 bits; registers are scarce here.
  const int first_pair = static_cast<int>(tile) * Tiles<D, M>::kPairs;
  if (first_pair >= block.pairs) return;
  const int last_pair = min(first_pair + Tiles<D, M>::kPairs, block.pairs) - 1;
  const auto seen_by = [&](int pair) { return static_cast<int>(block.base) + min(pair, last_pair) / work.group + 1; };
  const int begin = static_cast<int>(piece * work.piece_keys);
  const int end = static_cast<int>(min(int64_t{seen_by(last_pair)}, begin + work.piece_keys));
  if (begin >= end) return;

  const auto stage = [&](int first, int buffer) {
    stage_rows<D>(key_tiles + buffer * kKeys * D, kKeys, dim, threadIdx.x, kThreads,
                  [&](int r) { return first + r < end ? key_of(cache, block.row, first + r) : nullptr; });
    stage_rows<D>(value_tiles + buffer * kKeys * D, kKeys, dim, threadIdx.x, kThreads,
                  [&](int r) { return first + r < end ? value_of(cache, block.row, first + r) : nullptr; });
    commit_copies();
  };
  stage_rows<D>(query_tile, Tiles<D, M>::kPairs, dim, threadIdx.x, kThreads, [&](int r) {
    const int pair = first_pair + r;
    return pair <= last_pair ? work.queries + block.vector(args, work, pair) * dim : nullptr;
  });
  stage(begin, 0);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp * 16 * M;
  const float scale = args.scale * kToLog2;
  float output[M][D / 8][4] = {};
  Softmax state[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) state[m][0] = state[m][1] = {-kInfinity, 0};

  for (int first = begin, buffer = 0; first < end; first += kKeys, buffer = 1 - buffer) {
    wait_copies<0>();
    __syncthreads();
    if (first + kKeys < end) stage(first + kKeys, 1 - buffer);
    const bf16* keys = key_tiles + buffer * kKeys * D;
    const bf16* values = value_tiles + buffer * kKeys * D;

    float logits[M][kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t a[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) load_left<D>(a[m], query_tile, first_row + 16 * m, k, lane);
#pragma unroll
      for (int n = 0; n < kKeys / 8; n += 2) {
        uint32_t b[4];
        load_right<D>(b, keys, n * 8, k, lane);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          multiply_add(logits[m][n], a[m], b[0], b[1]);
          multiply_add(logits[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
    if (first + kKeys > min(seen_by(first_pair), end)) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int seen = min(end, seen_by(first_pair + first_row + m * 16 + lane / 4 + 8 * half));
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (first + n * 8 + lane % 4 * 2 + e >= seen) logits[m][n][2 * half + e] = -kInfinity;
            }
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shrink = online_step(logits[m], half, scale, state[m][half]);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          output[m][n][2 * half] *= shrink;
          output[m][n][2 * half + 1] *= shrink;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t a[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        a[m][0] = pack(logits[m][2 * k][0], logits[m][2 * k][1]);
        a[m][1] = pack(logits[m][2 * k][2], logits[m][2 * k][3]);
        a[m][2] = pack(logits[m][2 * k + 1][0], logits[m][2 * k + 1][1]);
        a[m][3] = pack(logits[m][2 * k + 1][2], logits[m][2 * k + 1][3]);
      }
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        uint32_t b[4];
        load_right_by_columns<D>(b, values, k * 16, n / 2, lane);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          multiply_add(output[m][n], a[m], b[0], b[1]);
          multiply_add(output[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Softmax total{state[m][half].largest, sum_of_four_lanes(state[m][half].sum)};
      const int pair = first_pair + first_row + m * 16 + lane / 4 + 8 * half;
      if (pair > last_pair) continue;
      if (lane % 4 == 0) write_softmax(args, work, block, piece, pair, total);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        write_values(args, work, block, piece, pair, n * 8 + lane % 4 * 2, output[m][n][2 * half],
                     output[m][n][2 * half + 1], total.sum);
      }
    }
  }
}

template <int D, int M>
void run(const AttendArgs& args, AttendWork work) {
  const int64_t blocks = args.segment_count * args.cache.kv_heads;
  work.tiles = ceil_div(args.max_count * work.group, Tiles<D, M>::kPairs);
  const Pieces pieces(args, work, {.blocks = blocks * work.tiles, .waves = 2, .step = kKeys, .least = 512});
  launch(attend_tiles<D, M>, blocks * work.tiles * work.pieces, kThreads, Tiles<D, M>::kSharedBytes, args, work);
  combine_pieces(args, work);
}

}  // namespace

void run_tiles(const AttendArgs& args, AttendWork work) {
  with_width(args.cache.head_dim, [&](auto width) {
    if constexpr (width <= 128) {
      if (args.max_count * work.group > 64) return run<width, 2>(args, work);
    }
    run<width, 1>(args, work);
  });
}

}  // namespace kv::cuda
