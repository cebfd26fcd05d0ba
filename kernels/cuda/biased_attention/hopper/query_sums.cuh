#pragma once

#include "kernels/cuda/biased_attention/hopper/stream.cuh"

// Queries' gradients where sums may have any order: what a block of keys adds to those of the queries that pass by, so
// that none need own queries and take logits and slopes once more. A product of its own, Σ ds k over all keys of the
// block, so its two warpgroups bring their slopes together in shared memory; of a step of 128 queries each then has the
// sums of half, of one of 64 half of their columns. It is a step late: neither waits for the other's slopes.

namespace kv::cuda {

// Where the sums are: [tokens, q_heads, D], from 0 on, in another order than vectors: of each 16 elements the four that
// a thread has of a product, 2l, 2l + 1, 2l + 8 and 2l + 9, lie together, from 4l on, so that one instruction adds
// them. Null where blocks of queries have sums of their own.
using QuerySums = float*;

// Of slopes [keys, queries] of every other step: from all of the block, and read by all.
struct SlopeBarriers {
  Barrier full[2], empty[2];

  // One thread, before Ring::init() publishes them.
  __device__ void init(int threads) {
    for (int i = 0; i < 2; ++i) {
      full[i].init(threads);
      empty[i].init(threads);
    }
  }
};

// What a warpgroup of the block does for it, after its own sums of each step.
template <int D, int kStep, int kGroups>
class QueryAdder {
 public:
  static constexpr int kKeys = 64 * kGroups;
  static constexpr int kSlopeBytes = kStep / kPanelColumns * kPanelBytes<kKeys>;

  // `keys` are what the first warpgroup owns, those of the next lie `pitch` bytes behind; slopes twice kSlopeBytes.
  __device__ QueryAdder(QuerySums to, const PackedAttention& attention, const Segment& segment,
                        const unsigned char* keys, int pitch, unsigned char* slopes, SlopeBarriers& barriers, int group,
                        int thread)
      : to_(to),
        heads_(attention.q_heads),
        segment_(segment),
        keys_(keys),
        pitch_(pitch),
        slopes_(slopes),
        barriers_(barriers),
        group_(group),
        warp_(thread / 32),
        lane_(thread % 32) {}

  // The warpgroup's slopes of step t, as left fragments.
  template <int N>
  __device__ __forceinline__ void share(int t, const uint32_t (&slopes)[N]) {
    barriers_.empty[t % 2].wait((t / 2 + 1) % 2);
    write_rows<kKeys>(slopes_ + t % 2 * kSlopeBytes, 64 * group_ + 16 * warp_, slopes, lane_);
    publish_to_async();
    barriers_.full[t % 2].arrive();
  }
  // The product of step t − 1, committed. At step 0 it is of whatever lies there or is being written, and goes nowhere:
  // under a condition the compiler would let no products be in flight.
  __device__ __forceinline__ void multiply_last(int t) {
    const int place = (t + 1) % 2;
    if (t > 0) barriers_.full[place].wait((t - 1) / 2 % 2);
    pin(sums_);
    const unsigned char* panel = slopes_ + place * kSlopeBytes + (kHasRows ? group_ * kPanelBytes<kKeys> : 0);
    const Operand left = by_columns<kKeys>(panel);
    product_fence();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const unsigned char* keys = anew(keys_) + g * pitch_ + (kHasRows ? 0 : group_ * kPanelBytes<64>);
      const Operand right = by_columns<64>(keys);
#pragma unroll
      for (int k = 0; k < 4; ++k) product_of_columns(sums_, left + row_step(4 * g + k), right + row_step(k), g + k > 0);
    }
    product_commit();
  }
  // Adds it to memory, once it is done; `step` is what passes by in step t.
  __device__ __forceinline__ void add_last(int t, const Step& step) {
    pin(sums_);
    if (t > 0) {
      barriers_.empty[(t + 1) % 2].arrive();
      add();
    }
    last_ = step;
  }

 private:
  static_assert(kGroups == 2 && (kStep == 128 || (kStep == 64 && D == 128)));
  static constexpr bool kHasRows = kStep == 128;  // half of the queries, not of the columns

  __device__ __forceinline__ void add() const {
    const int query = last_.first + (kHasRows ? 64 * group_ : 0) + 16 * warp_ + lane_ / 4;
    const int column = (kHasRows ? 0 : 64 * group_) + lane_ % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (query + 8 * half >= segment_.count) continue;
      float* to = to_ + vector_of(segment_, heads_, last_.head, query + 8 * half) * D + column;
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        const float* of = sums_ + 4 * n + 2 * half;
        add_four(to + 8 * n, {of[0], of[1], of[4], of[5]});
      }
    }
  }

  QuerySums to_;
  int heads_;
  const Segment& segment_;
  const unsigned char* keys_;
  int pitch_;
  unsigned char* slopes_;
  SlopeBarriers& barriers_;
  int group_, warp_, lane_;
  Step last_{};          // of step t − 1
  float sums_[32] = {};  // [64, 64]
};

// A head's queries, a few a block: their gradients from the sums.
constexpr int kScalingThreads = 256, kScaledQueries = 16;
template <int D>
__global__ void __launch_bounds__(kScalingThreads) scale_queries(BiasedAttentionBackwardArgs args, QuerySums sums) {
  const PackedAttention& attention = args.attention;
  const Place place(attention, attention.q_heads, blockIdx.x);
  const int first = place.tile * kScaledQueries, rows = min(kScaledQueries, place.segment.count - first);
  for (int i = static_cast<int>(threadIdx.x); i < rows * D / 4; i += kScalingThreads) {
    const int64_t vector = vector_of(place.segment, attention.q_heads, place.head, first + i / (D / 4));
    const int four = i % (D / 4);
    const float4 x = reinterpret_cast<const float4*>(sums + vector * D)[four];
    const int64_t at = vector * D + four / 4 * 16 + four % 4 * 2;
    write_pair(args.query_gradient, at, x.x * attention.scale, x.y * attention.scale);
    write_pair(args.query_gradient, at + 8, x.z * attention.scale, x.w * attention.scale);
  }
}

}  // namespace kv::cuda
