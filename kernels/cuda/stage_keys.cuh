#pragma once

#include "kernels/cuda/mma.cuh"

namespace kv::cuda {

// Starts copying the keys of slots [first, first + kKeys) of a row into a tile, zeros from slot `end` on. `first` is
// the first slot of a page, so that each page is looked up once, and all of them at the same time.
template <int D, int kKeys>
__device__ void stage_keys(bf16* tile, const PagedView& cache, int64_t row, int first, int end, int thread,
                           int threads) {
  constexpr int kPages = kKeys / kPageTokens;
  static_assert(kKeys % kPageTokens == 0);
  const int32_t* table = cache.page_table + row * cache.max_pages + first / kPageTokens;
  int32_t pages[kPages];
#pragma unroll
  for (int p = 0; p < kPages; ++p) pages[p] = first + p * kPageTokens < end ? table[p] : 0;
  const int dim = cache.head_dim;
#pragma unroll
  for (int p = 0; p < kPages; ++p) {
    const bf16* page = static_cast<const bf16*>(cache.keys.data) + int64_t{pages[p]} * kPageTokens * dim;
    const int filled = end - first - p * kPageTokens;
    stage_rows<D>(tile + p * kPageTokens * D, kPageTokens, dim, thread, threads,
                  [&](int r) { return r < filled ? page + r * dim : nullptr; });
  }
}

}  // namespace kv::cuda
