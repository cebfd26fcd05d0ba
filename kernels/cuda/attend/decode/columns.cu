#include "kernels/cuda/attend/decode/row.cuh"
#include "kernels/cuda/stage_keys.cuh"

// Column statistics of at most kDecodePairs pairs. Memory is the limit; any/columns.cu, which multiplies its keys by
// tiles of 64 queries, would multiply by zeros nearly always. One reading of a key serves all pairs of its KV head.

namespace kv::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kKeys = 2 * kPageTokens;  // of a warp, one a lane
static_assert(kKeys == 32);

// Writes a slot's sum and maximum over the queries of each query head, summed in their order.
template <class Probability>
__device__ void write_columns(const AttendArgs& args, const decode::Row& row, int group, int slot,
                              const Probability& probability_of) {
  if (slot >= row.length) return;
  for (int g = 0; g < group; ++g) {
    float sum = 0, largest = 0;
    for (int pair = g; pair < row.count * group; pair += group) {
      const float probability = probability_of(pair);
      sum += probability;
      largest = fmaxf(largest, probability);
    }
    const int64_t vector = int64_t{row.row} * group + g;
    if (args.column_sums) args.column_sums.row(vector)[slot] = sum;
    if (args.column_max) args.column_max.row(vector)[slot] = largest;
  }
}

// Each warp has keys of its own, and is done with them without the others.
template <int D>
__global__ void __launch_bounds__(kThreads) decode_columns(AttendArgs args, AttendWork work, int64_t tiles) {
  extern __shared__ __align__(128) bf16 staged[];  // [warps, keys, D]
  __shared__ float probabilities[kWarps][kDecodePairs][kKeys + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = work.group;
  const auto index = static_cast<int>(blockIdx.x / tiles);
  decode::Row row;
  row.segment = index / args.cache.kv_heads;
  row.kv_head = index % args.cache.kv_heads;
  row.read(args);
  const int first_slot = (static_cast<int>(blockIdx.x % tiles) * kWarps + warp) * kKeys;
  if (row.count == 0 || first_slot >= row.length) return;
  KV_DEVICE_CHECK(row.length >= row.count);
  bf16* keys = staged + warp * kKeys * D;
  stage_keys<D, kKeys>(keys, args.cache, row.row, first_slot, row.length, lane, 32);
  commit_copies();
  HeldRows<D, 1> queries;
  decode::load_queries<D>(queries, args, work, row, args.cache.head_dim, lane);
  const int pairs = row.count * group;
  Softmax of[2];
  int seen[2];  // of these keys, by the lane's two pairs
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = min(lane / 4 + 8 * half, pairs - 1);
    of[half] = work.softmax[row.scratch(args, group, pair)];
    seen[half] = row.length - row.count + pair / group + 1 - first_slot;
  }
  wait_copies<0>();
  __syncwarp();
  float logits[1][kKeys / 8][4];
  queries.template times<kKeys / 8>(keys, lane, logits);
  const float scale = args.scale * kToLog2;
  const Expiries expiries = row.expiries(args);
  const bool may_expire = expiries.may(first_slot, first_slot + kKeys);
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int half = e / 2, key = n * 8 + lane % 4 * 2 + e % 2;
      const int32_t position = row.position + min(lane / 4 + 8 * half, pairs - 1) / group;
      const bool is_seen = key < seen[half] && !(may_expire && expiries.of(first_slot + key) <= position);
      const float probability = exp2_fast(logits[0][n][e] * scale - of[half].largest) * of[half].sum;
      probabilities[warp][lane / 4 + 8 * half][key] = is_seen ? probability : 0.0f;
    }
  }
  __syncwarp();
  write_columns(args, row, group, first_slot + lane, [&](int pair) { return probabilities[warp][pair][lane]; });
}

template <int D>
void run(const AttendArgs& args, const AttendWork& work) {
  const int64_t tiles = ceil_div(args.cache.max_length, kWarps * kKeys);
  launch(decode_columns<D>, args.segment_count * args.cache.kv_heads * tiles, kThreads,
         kWarps * kKeys * D * sizeof(bf16), args, work, tiles);
}

}  // namespace

void run_decode_columns(const AttendArgs& args, const AttendWork& work) {
  with_width(args.cache.head_dim, [&](auto width) { run<width>(args, work); });
}

}  // namespace kv::cuda
