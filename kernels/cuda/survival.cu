#include "kernels/survival.h"

#include <algorithm>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/radix.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
// Logits held at a time; long blocks go through in chunks of queries.
constexpr int64_t kLogits = int64_t{64} << 20;
// Weights of the mass mode as integers: 40 bits below one leave room for sums over 2^23 keys.
constexpr float kFixedOne = 0x1p40f;

// logits[segment, q_head, query of the chunk, slot], for visible slots.
struct Chunk {
  float* logits;
  int64_t first;  // query of the block
  int64_t count;
  int64_t pitch;
};

__device__ float* logits_of(const SurvivalArgs& args, const Chunk& chunk, int64_t segment, int64_t q_head,
                            int64_t query) {
  return chunk.logits + ((segment * args.q_heads + q_head) * chunk.count + query) * chunk.pitch;
}

template <int D>
__global__ void __launch_bounds__(KeyTile<D>::kThreads)
    logits_kernel(SurvivalArgs args, const bf16* queries, Chunk chunk, int64_t tiles) {
  using Tile = KeyTile<D>;
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* staged = reinterpret_cast<bf16*>(shared);
  const PagedView& cache = args.cache;
  const int group = args.q_heads / cache.kv_heads;
  const int64_t tile = blockIdx.x % tiles;
  const int64_t q_head = blockIdx.x / tiles % args.q_heads;
  const int64_t index = blockIdx.x / tiles / args.q_heads;
  const Segment segment = args.segments[index];
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + q_head / group;
  const int64_t length = cache.lengths[row];
  const int64_t first_slot = tile * Tile::kKeys;
  const int64_t end = min(int64_t{segment.count}, chunk.first + chunk.count);
  const int64_t base = length - segment.count;
  if (chunk.first >= end || first_slot > base + end - 1) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  stage_rows<D>(staged, Tile::kKeys, cache.head_dim, threadIdx.x, Tile::kThreads,
                [&](int r) { return first_slot + r < length ? key_of(cache, row, first_slot + r) : nullptr; });
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  HeldRows<D, Tile::kM> keys;
  keys.load(staged, warp * 16 * Tile::kM, lane);
  for (int64_t first = chunk.first; first < end; first += Tile::kQueries) {
    __syncthreads();
    stage_rows<D>(staged, Tile::kQueries, cache.head_dim, threadIdx.x, Tile::kThreads, [&](int r) {
      return first + r < end ? queries + ((segment.first_token + first + r) * args.q_heads + q_head) * cache.head_dim
                             : nullptr;
    });
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    float sums[Tile::kM][8][4];
    keys.times(staged, lane, sums);
#pragma unroll
    for (int m = 0; m < Tile::kM; ++m) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int64_t slot = first_slot + warp * 16 * Tile::kM + m * 16 + lane / 4 + e / 2 * 8;
          const int64_t query = first + n * 8 + lane % 4 * 2 + e % 2;
          if (query >= end || slot > base + query) continue;
          logits_of(args, chunk, index, q_head, query - chunk.first)[slot] = sums[m][n][e] * args.scale;
        }
      }
    }
  }
}

// One block a (segment, query head, query).
__global__ void __launch_bounds__(kThreads) select_kernel(SurvivalArgs args, Chunk chunk) {
  const PagedView& cache = args.cache;
  const int group = args.q_heads / cache.kv_heads;
  const int64_t query = chunk.first + blockIdx.x % chunk.count;
  const int64_t q_head = blockIdx.x / chunk.count % args.q_heads;
  const int64_t index = blockIdx.x / chunk.count / args.q_heads;
  const Segment segment = args.segments[index];
  if (query >= segment.count) return;
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + q_head / group;
  const int64_t visible = cache.lengths[row] - segment.count + query + 1;
  const float* logits = logits_of(args, chunk, index, q_head, query - chunk.first);
  int32_t* last = args.last_selected.row(row * group + q_head % group);
  const int32_t position = segment.first_position + static_cast<int32_t>(query);
  const auto key = [&](int64_t j) { return ordered(logits[j]); };
  // Queries of a head run at the same time; a maximum of integers does not care in which order.
  const auto select = [&](int64_t j) { atomicMax(&last[j], position); };

  if (args.top_k > 0) {
    if (args.top_k >= visible) {
      for (int64_t j = threadIdx.x; j < visible; j += kThreads) select(j);
      return;
    }
    const auto cut =
        radix_cut<8, uint32_t, unsigned>(visible, static_cast<unsigned>(args.top_k), key, [](int64_t) { return 1u; });
    select_from_newest<kThreads>(visible, cut.key, cut.missing, key, select);
    return;
  }
  using Weight = unsigned long long;
  float largest = -kInfinity;
  for (int64_t j = threadIdx.x; j < visible; j += kThreads) largest = fmaxf(largest, logits[j]);
  largest = block_reduce(largest, -kInfinity, Larger());
  const auto weight = [&](int64_t j) { return static_cast<Weight>(expf(logits[j] - largest) * kFixedOne); };
  Weight total = 0;
  for (int64_t j = threadIdx.x; j < visible; j += kThreads) total += weight(j);
  total = block_reduce(total, Weight{0}, Add());
  const Weight target = min(total, static_cast<Weight>(ceil(static_cast<double>(args.mass) * total)));
  if (target == 0) return;
  const auto cut = radix_cut<8, uint32_t, Weight>(visible, target, key, weight);
  // Keys with the cut's logit weigh the same; where the search ended early none has it but those in the selection.
  int64_t quota = visible;
  const uint32_t bits = cut.key & 0x80000000u ? cut.key & 0x7fffffffu : ~cut.key;
  const Weight tie_weight = static_cast<Weight>(expf(__uint_as_float(bits) - largest) * kFixedOne);
  if (tie_weight > 0) quota = static_cast<int64_t>((cut.missing + tie_weight - 1) / tie_weight);
  select_from_newest<kThreads>(visible, cut.key, quota, key, select);
}

}  // namespace

void survival(const SurvivalArgs& args) {
  const PagedView& cache = args.cache;
  check_cache(cache);
  KV_CHECK(args.q_heads % cache.kv_heads == 0 && args.top_k >= 0);
  if (args.segment_count == 0 || cache.max_length == 0) return;
  const bf16* queries = args.queries.as<bf16>();
  check_vectors(queries, cache.head_dim);
  // Counts are known on the device only; no block has more queries than its longest row has entries.
  const int64_t vectors = args.segment_count * args.q_heads;
  const int64_t queries_a_chunk = std::clamp<int64_t>(kLogits / (vectors * cache.max_length), 1, cache.max_length);
  const Scratch<float> logits(vectors * queries_a_chunk * cache.max_length);
  for (int64_t first = 0; first < cache.max_length; first += queries_a_chunk) {
    const Chunk chunk{logits.data(), first, queries_a_chunk, cache.max_length};
    with_width(cache.head_dim, [&](auto width) {
      constexpr int D = width;
      using Tile = KeyTile<D>;
      const int64_t tiles = ceil_div(cache.max_length, Tile::kKeys);
      const size_t bytes = std::max(Tile::kKeys, Tile::kQueries) * D * sizeof(bf16);
      launch(logits_kernel<D>, vectors * tiles, Tile::kThreads, bytes, args, queries, chunk, tiles);
    });
    launch(select_kernel, vectors * queries_a_chunk, kThreads, 0, args, chunk);
  }
}

}  // namespace kv::cuda
