#pragma once

#include "kernels/cuda/attend/attend.cuh"

// A row of the cache and the queries that attend to it, at most kDecodePairs pairs of a query and a query head.

namespace kv::cuda::decode {

struct Row {
  int32_t row;  // of the cache
  int32_t kv_head;
  int32_t length;
  int32_t segment;
  int32_t first_token;  // of the segment
  int32_t count;        // of the segment
  int32_t position;     // of the segment's first query

  // The rest, once segment and kv_head are set.
  __device__ void read(const AttendArgs& args) {
    const Segment of = args.segments[segment];
    row = of.sequence * args.cache.kv_heads + kv_head;
    length = args.cache.lengths[row];
    first_token = of.first_token;
    count = of.count;
    position = of.first_position;
  }

  __device__ Expiries expiries(const AttendArgs& args) const { return {args.cache, row, length}; }

  // Until when the page's slot lane % 16 is seen. Asked a page ahead: two reads, one after the other.
  __device__ int32_t until_in_page(const AttendArgs& args, int first_slot, int lane) const {
    const Expiries until = expiries(args);
    if (!until.may(first_slot, first_slot + kPageTokens)) return kNeverExpires;
    return until.of(first_slot + lane % kPageTokens);
  }
  // Which of a lane's logits of that page are of entries that have expired by their query: bit n · 4 + e (pages.cuh).
  __device__ unsigned expired(int32_t until, int group, int pairs, int lane) const {
    if (!__any_sync(kWarp, until != kNeverExpires)) return 0;
    unsigned expired = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int query = min(lane / 4 + e / 2 * 8, pairs - 1) / group;
        const int32_t of_slot = __shfl_sync(kWarp, until, n * 8 + lane % 4 * 2 + e % 2);
        expired |= unsigned{of_slot <= position + query} << (n * 4 + e);
      }
    }
    return expired;
  }

  __device__ int pages() const { return (length + kPageTokens - 1) / kPageTokens; }

  // In the packed tensors, times head_dim.
  __device__ int64_t vector(const AttendArgs& args, int group, int pair) const {
    return in_group(first_token, args, group, pair);
  }
  // In work.softmax, which leaves room for max_count queries a segment.
  __device__ int64_t scratch(const AttendArgs& args, int group, int pair) const {
    return in_group(segment * args.max_count, args, group, pair);
  }

 private:
  // The same for a pair whose segment's first query is the token-th.
  __device__ int64_t in_group(int64_t token, const AttendArgs& args, int group, int pair) const {
    const int query = pair < group ? 0 : pair / group;  // a division takes as long as half a page
    return (token + query) * args.q_heads + kv_head * group + pair - query * group;
  }
};

// The 16 pairs of a row as the left operand, read straight from memory.
template <int D>
__device__ void load_queries(HeldRows<D, 1>& queries, const AttendArgs& args, const AttendWork& work, const Row& row,
                             int dim, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = lane / 4 + 8 * half;
    const bool present = pair < row.count * work.group;
    const bf16* from = work.queries + row.vector(args, work.group, pair) * dim;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int d = step * 16 + right * 8 + lane % 4 * 2;
        queries.a[0][step][half + 2 * right] = present && d < dim ? *reinterpret_cast<const uint32_t*>(from + d) : 0;
      }
    }
  }
}

}  // namespace kv::cuda::decode
