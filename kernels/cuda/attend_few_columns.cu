#include "kernels/cuda/attend_few_pages.cuh"

// Column statistics of a few queries, so for decoding: memory is the limit here, too, and attend_columns, which streams
// tiles of queries past its keys, would multiply by rows of zeros. All pairs of a KV head share one reading of a key.

namespace kv::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kKeys = 2 * kPageTokens;  // of a warp, one a lane
static_assert(kKeys == 32);

// Starts copying a warp's keys.
template <int D>
__device__ void stage_keys(bf16* keys, const PagedView& cache, const few::Part& part, int first_slot, int dim,
                           int lane) {
  const auto page_at = [&](int slot) { return slot < part.length ? key_of(cache, part.row, slot) : nullptr; };
  const bf16 *low = page_at(first_slot), *high = page_at(first_slot + kPageTokens);
  stage_rows<D>(keys, kKeys, dim, lane, 32, [&](int r) {
    return first_slot + r < part.length ? (r < kPageTokens ? low : high) + r % kPageTokens * dim : nullptr;
  });
  commit_copies();
}

// Over the queries of each query head, in their order.
template <class Probability>
__device__ void write_columns(const AttendArgs& args, const few::Part& part, int group, int slot,
                              const Probability& probability_of) {
  if (slot >= part.length) return;
  for (int g = 0; g < group; ++g) {
    float sum = 0, largest = 0;
    for (int pair = g; pair < part.count * group; pair += group) {
      const float probability = probability_of(pair);
      sum += probability;
      largest = fmaxf(largest, probability);
    }
    const int64_t at = (int64_t{part.row} * group + g) * args.column_pitch + slot;
    if (args.column_sums) args.column_sums[at] = sum;
    if (args.column_max) args.column_max[at] = largest;
  }
}

// Each warp has keys of its own, and is done with them without the others.
template <int D>
__global__ void __launch_bounds__(kThreads) few_columns(AttendArgs args, AttendWork work, int64_t tiles) {
  extern __shared__ __align__(128) bf16 staged[];  // [warps, keys, D]
  __shared__ float probabilities[kWarps][kFewPairs][kKeys + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int dim = args.cache.head_dim, group = work.group;
  const auto index = static_cast<int>(blockIdx.x / tiles);
  few::Part part{.kv_head = index % args.cache.kv_heads, .segment = index / args.cache.kv_heads};
  part.read_row(args);
  const int first_slot = (static_cast<int>(blockIdx.x % tiles) * kWarps + warp) * kKeys;
  if (part.count == 0 || first_slot >= part.length) return;
  KV_DEVICE_CHECK(part.length >= part.count);
  bf16* keys = staged + warp * kKeys * D;
  stage_keys<D>(keys, args.cache, part, first_slot, dim, lane);
  HeldRows<D, 1> queries;
  few::load_queries<D>(queries, args, work, part, dim, lane);
  const int pairs = part.count * group;
  Softmax of[2];
  int seen[2];  // of these keys, by the lane's two pairs
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = min(lane / 4 + 8 * half, pairs - 1);
    of[half] = work.softmax[part.scratch(args, group, pair)];
    seen[half] = part.length - part.count + pair / group + 1 - first_slot;
  }
  wait_copies<0>();
  __syncwarp();
  float logits[1][kKeys / 8][4];
  queries.template times<kKeys / 8>(keys, lane, logits);
  const float scale = args.scale * kToLog2;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int half = e / 2, key = n * 8 + lane % 4 * 2 + e % 2;
      const float probability = exp2_fast(logits[0][n][e] * scale - of[half].largest) * of[half].sum;
      probabilities[warp][lane / 4 + 8 * half][key] = key < seen[half] ? probability : 0.0f;
    }
  }
  __syncwarp();
  write_columns(args, part, group, first_slot + lane, [&](int pair) { return probabilities[warp][pair][lane]; });
}

template <int D>
void run(const AttendArgs& args, const AttendWork& work) {
  const int64_t tiles = ceil_div(args.cache.max_length, kWarps * kKeys);
  launch(few_columns<D>, args.segment_count * args.cache.kv_heads * tiles, kThreads, kWarps * kKeys * D * sizeof(bf16),
         args, work, tiles);
}

}  // namespace

void run_few_columns(const AttendArgs& args, const AttendWork& work) {
  with_width(args.cache.head_dim, [&](auto width) { run<width>(args, work); });
}

}  // namespace kv::cuda
