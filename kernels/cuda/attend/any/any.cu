#include "kernels/cuda/attend/step.cuh"

// Attention of any number of queries at any width, on any card: FlashAttention-2's schedule over pages. The next keys
// and values are on their way while the tensor cores multiply those before.

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;

// 64·M pairs a thread block, 16·M a warp. With M = 2 each fragment of keys and values that a warp reads from shared
// memory serves two products, without which shared memory would be the limit.
template <int D, int M>
struct Shape {
  static constexpr int kPairs = 64 * M;
  static constexpr size_t kSharedBytes = (kPairs + 4 * kStepKeys) * D * sizeof(bf16);
};

// What has expired by the position of a row of the warp's.
template <int M, class PositionOf>
__device__ __forceinline__ void hide_expired(Logits<M>& logits, int first, int lane, const Expiries& expiries,
                                             const PositionOf& position_of) {
#pragma unroll
  for (int n = 0; n < kStepKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int32_t until = expiries.of(first + n * 8 + lane % 4 * 2 + e);
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (position_of(m * 16 + lane / 4 + 8 * half) >= until) logits[m][n][2 * half + e] = -kInfinity;
        }
      }
    }
  }
}

// The step's keys begin at slot `first`; seen_by(row) is how many slots a row of the warp's sees.
template <int M, class SeenBy>
__device__ __forceinline__ void mask(Logits<M>& logits, int first, int lane, const SeenBy& seen_by) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int seen = seen_by(m * 16 + lane / 4 + 8 * half);
#pragma unroll
      for (int n = 0; n < kStepKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (first + n * 8 + lane % 4 * 2 + e >= seen) logits[m][n][2 * half + e] = -kInfinity;
        }
      }
    }
  }
}

// `first_pair` is of the warp.
template <int D, int M>
__device__ __forceinline__ void write_outputs(const AttendArgs& args, const AttendWork& work, const AttendBlock& block,
                                              int piece, int first_pair, int last_pair, int lane,
                                              const Attended<D, M>& attended) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Softmax total{attended.state[m][half].largest, sum_of_four_lanes(attended.state[m][half].sum)};
      const int pair = first_pair + m * 16 + lane / 4 + 8 * half;
      if (pair > last_pair) continue;
      if (lane % 4 == 0) write_softmax(args, work, block, piece, pair, total);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        write_values(args, work, block, piece, pair, n * 8 + lane % 4 * 2, attended.output[m][n][2 * half],
                     attended.output[m][n][2 * half + 1], total.sum);
      }
    }
  }
}

template <int D, int M>
__global__ void __launch_bounds__(kThreads, D <= 128 ? 2 : 1) attend_any(AttendArgs args, AttendWork work) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* query_tile = reinterpret_cast<bf16*>(shared);
  bf16* key_tiles = query_tile + Shape<D, M>::kPairs * D;  // two, then two of values
  bf16* value_tiles = key_tiles + 2 * kStepKeys * D;
  const PagedView& cache = args.cache;
  const int dim = cache.head_dim;

  // Late tiles see the most keys: they start first. The tiles of a KV head run together and share its keys in L2.
  int64_t block_number = blockIdx.x;
  const int piece = static_cast<int>(block_number % work.pieces);
  block_number /= work.pieces;
  const int64_t tile = work.tiles - 1 - block_number % work.tiles;
  block_number /= work.tiles;
  const AttendBlock block(args, work, block_number / cache.kv_heads, block_number % cache.kv_heads);
  block.check();
  // Slots and pairs fit 32 bits; registers are scarce here.
  const int first_pair = static_cast<int>(tile) * Shape<D, M>::kPairs;
  if (first_pair >= block.pairs) return;
  const int last_pair = min(first_pair + Shape<D, M>::kPairs, block.pairs) - 1;
  const auto seen_by = [&](int pair) { return static_cast<int>(block.base) + min(pair, last_pair) / work.group + 1; };
  const int begin = static_cast<int>(piece * work.piece_keys);
  const int end = static_cast<int>(min(int64_t{seen_by(last_pair)}, begin + work.piece_keys));
  if (begin >= end) return;

  const auto load = [&](int first, int buffer) {
    stage_rows<D>(key_tiles + buffer * kStepKeys * D, kStepKeys, dim, threadIdx.x, kThreads,
                  [&](int r) { return first + r < end ? key_of(cache, block.row, first + r) : nullptr; });
    stage_rows<D>(value_tiles + buffer * kStepKeys * D, kStepKeys, dim, threadIdx.x, kThreads,
                  [&](int r) { return first + r < end ? value_of(cache, block.row, first + r) : nullptr; });
    commit_copies();
  };
  stage_rows<D>(query_tile, Shape<D, M>::kPairs, dim, threadIdx.x, kThreads, [&](int r) {
    const int pair = first_pair + r;
    return pair <= last_pair ? work.queries + block.vector(args, work, pair) * dim : nullptr;
  });
  load(begin, 0);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp * 16 * M;
  const float scale = args.scale * kToLog2;
  const Expiries expiries = block.expiries(args);
  Attended<D, M> attended;
  for (int first = begin, buffer = 0; first < end; first += kStepKeys, buffer = 1 - buffer) {
    wait_copies<0>();
    __syncthreads();
    if (first + kStepKeys < end) load(first + kStepKeys, 1 - buffer);
    Logits<M> logits = {};
    qk<D, M>(query_tile, first_row, key_tiles + buffer * kStepKeys * D, lane, logits);
    if (first + kStepKeys > min(seen_by(first_pair), end)) {
      mask<M>(logits, first, lane, [&](int row) { return min(end, seen_by(first_pair + first_row + row)); });
    }
    if (expiries.may(first, first + kStepKeys)) {
      hide_expired<M>(logits, first, lane, expiries,
                      [&](int row) { return block.position(work, min(first_pair + first_row + row, last_pair)); });
    }
    softmax<D, M>(logits, scale, attended);
    pv<D, M>(logits, value_tiles + buffer * kStepKeys * D, lane, attended);
  }
  write_outputs<D, M>(args, work, block, piece, first_pair + first_row, last_pair, lane, attended);
}

template <int D, int M>
void run(const AttendArgs& args, AttendWork work) {
  const int64_t blocks = args.segment_count * args.cache.kv_heads;
  work.tiles = ceil_div(args.max_count * work.group, Shape<D, M>::kPairs);
  const Pieces pieces(args, work, {.blocks = blocks * work.tiles, .waves = 2, .step = kStepKeys, .least = 512});
  launch(attend_any<D, M>, blocks * work.tiles * work.pieces, kThreads, Shape<D, M>::kSharedBytes, args, work);
  combine_pieces(args, work);
}

}  // namespace

void run_any(const AttendArgs& args, AttendWork work) {
  with_width(args.cache.head_dim, [&](auto width) {
    if constexpr (width <= 128) {
      if (args.max_count * work.group > 64) return run<width, 2>(args, work);
    }
    run<width, 1>(args, work);
  });
}

}  // namespace kv::cuda
