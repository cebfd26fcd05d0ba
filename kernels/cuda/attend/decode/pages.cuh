#pragma once

#include "kernels/cuda/attend/decode/list.cuh"

// How a warp of decode attention (decode.cu) streams the pages of its run, and what it makes of them.

namespace kv::cuda::decode {

template <int D>
struct StageShape {
  static constexpr int kStages = D <= 32 ? 8 : D <= 64 ? 3 : 2;  // at 64 and 128 more bring nothing
  static constexpr int kPageValues = kPageTokens * D;
  static constexpr int kStageValues = 2 * kPageValues;  // keys, then values
  static constexpr size_t kWarpBytes = kStages * kStageValues * sizeof(bf16);
  static constexpr size_t kPartBytes = kParts * sizeof(Part);
  // The stages take a warp's last piece.
  static_assert(kWarpBytes >= kDecodePairs * (D * sizeof(float) + sizeof(Softmax)));
};

// The pages of a warp's run, streamed through the warp's stages. Reading runs ahead over the ends of rows.
template <int D>
struct Pages {
  using Shape = StageShape<D>;
  // One page: its number in the pool, and how many of its slots are filled.
  struct Ahead {
    int32_t page = 0;
    int32_t filled = 0;
  };

  const PagedView& cache;
  const Part* parts;
  const Window& window;
  Run run;
  bf16* stages;
  int dim;
  int lane;
  Ahead current{}, next{};  // of the run's pages from t − t % 32 on and of the 32 after those, one a lane

  __device__ Ahead look_up(int t) const {
    Ahead ahead;
    const int at = run.first + t + lane;
    if (at >= run.end) return ahead;
    const Part& part = parts[part_at(parts, window, at)];
    const int page = at - part.row_first();
    ahead.page = cache.page_table[part.row * cache.max_pages + page];
    ahead.filled = min(kPageTokens, part.length - page * kPageTokens);
    return ahead;
  }

  // Sends for the first pages, which next = look_up(0) has named.
  __device__ void begin() {
#pragma unroll 1
    for (int t = 0; t < Shape::kStages - 1; ++t) load(t);
  }

  // Starts copying the keys or the values of a page, whose empty slots become zero (see stage_rows()).
  __device__ void load_half(bf16* to, const bf16* from, int filled) const {
    if (dim < D) {
      return stage_rows<D>(to, kPageTokens, dim, lane, 32,
                           [&](int r) { return r < filled ? from + r * dim : nullptr; });
    }
    constexpr int kRow = D / 8;  // words of 16 bytes
#pragma unroll
    for (int i = 0; i < kPageTokens * kRow / 32; ++i) {
      const int word = lane + 32 * i, row = word / kRow;
      copy_or_zero(to + place<D>(row, word % kRow * 8), from + word * 8, row < filled);
    }
  }

  // Starts copying the run's page t.
  __device__ void load(int t) {
    if (t % 32 == 0) {
      current = next;
      next = look_up(t + 32);
    }
    const int32_t page = __shfl_sync(kWarp, current.page, t % 32);
    const int32_t filled = __shfl_sync(kWarp, current.filled, t % 32);
    if (filled > 0) {
      bf16* keys = stages + t % Shape::kStages * Shape::kStageValues;
      const int64_t from = int64_t{page} * kPageTokens * dim;
      const auto* pool_keys = static_cast<const bf16*>(cache.keys.data) + from;
      const auto* pool_values = static_cast<const bf16*>(cache.values.data) + from;
      load_half(keys, pool_keys, filled);
      load_half(keys + Shape::kPageValues, pool_values, filled);
    }
    commit_copies();  // also when empty, so that the count of groups in flight stays the same
  }

  // Waits for the run's page t, and sends for the one that takes the place of the page before. Returns its keys; its
  // values follow.
  __device__ const bf16* take(int t) {
    wait_copies<Shape::kStages - 2>();
    __syncwarp();  // the page has come, for all lanes; and all are done with the one before
    load(t + Shape::kStages - 1);
    return stages + t % Shape::kStages * Shape::kStageValues;
  }
};

// Asks the L2 cache for the first pages of each warp's run, while the previous kernel is still at work: memory is idle
// then. A hint alone, and what that kernel writes there goes through the same cache.
template <int D>
__device__ void prefetch_pages(const PagedView& cache, const Part* parts, const Window& window, int dim) {
#if __CUDA_ARCH__ >= 900
  constexpr int kBytes = 24 * 1024, kPages = kBytes / (2 * StageShape<D>::kPageValues * static_cast<int>(sizeof(bf16)));
  const Run run = window.run_of(static_cast<int>(threadIdx.x) / 32);
  const int at = run.first + static_cast<int>(threadIdx.x) % 32;
  if (at >= min(run.end, run.first + min(32, kPages))) return;
  const Part& part = parts[part_at(parts, window, at)];
  const int64_t page = cache.page_table[part.row * cache.max_pages + at - part.row_first()];
  const uint32_t bytes = static_cast<uint32_t>(kPageTokens * dim) * sizeof(bf16);
  for (const void* pool : {static_cast<const void*>(cache.keys.data), static_cast<const void*>(cache.values.data)}) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const char*>(pool) + page * bytes),
                 "r"(bytes));
  }
#endif
}

// What a warp has of a part's pairs: lane / 4 and lane / 4 + 8 are the lane's two.
template <int D>
struct Attended {
  float output[1][D / 8][4] = {};
  Softmax state[2] = {{-kInfinity, 0}, {-kInfinity, 0}};

  // One page; pair `half` of the lane sees its first seen[half] slots, but those that have `expired`. Its values follow
  // its keys.
  __device__ void add_page(const HeldRows<D, 1>& queries, const bf16* keys, const int (&seen)[2], unsigned expired,
                           float scale, int lane) {
    float logits[1][2][4];
    queries.template times<2>(keys, lane, logits);  // qk
    if (min(seen[0], seen[1]) < kPageTokens || expired != 0) mask(logits[0], seen, expired, lane);
    softmax(logits[0], scale);
    pv(logits[0], keys + StageShape<D>::kPageValues, lane);
  }

  __device__ __forceinline__ static void mask(float (&logits)[2][4], const int (&seen)[2], unsigned expired, int lane) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool is_hidden = n * 8 + lane % 4 * 2 + e % 2 >= seen[e / 2] || (expired >> (n * 4 + e) & 1) != 0;
        if (is_hidden) logits[n][e] = -kInfinity;
      }
    }
  }

  // Logits become probabilities relative to the largest so far.
  __device__ __forceinline__ void softmax(float (&logits)[2][4], float scale) {
    const float shrink[2] = {online_step(logits, 0, scale, state[0]), online_step(logits, 1, scale, state[1])};
    if (__any_sync(kWarp, shrink[0] != 1 || shrink[1] != 1)) {  // a new maximum, which later pages seldom have
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) output[0][n][e] *= shrink[e / 2];
      }
    }
  }

  __device__ __forceinline__ void pv(const float (&logits)[2][4], const bf16* values, int lane) {
    const uint32_t a[4] = {to_bf16_pair(logits[0][0], logits[0][1]), to_bf16_pair(logits[0][2], logits[0][3]),
                           to_bf16_pair(logits[1][0], logits[1][1]), to_bf16_pair(logits[1][2], logits[1][3])};
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t b[4];
      load_right_by_columns<D>(b, values, 0, n / 2, lane);
      multiply_add(output[0][n], a, b[0], b[1]);
      multiply_add(output[0][n + 1], a, b[2], b[3]);
    }
  }

  // Calls write(pair, softmax) for each pair of the lane; what it returns takes the outputs: (d, values).
  template <class Write>
  __device__ void visit(int pairs, int lane, const Write& write) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = lane / 4 + 8 * half;
      const float sum = sum_of_four_lanes(state[half].sum);
      if (pair >= pairs) continue;
      const auto write_values = write(pair, Softmax{state[half].largest, sum});
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        write_values(n * 8 + lane % 4 * 2, float2{output[0][n][2 * half], output[0][n][2 * half + 1]});
      }
    }
  }
};

}  // namespace kv::cuda::decode
