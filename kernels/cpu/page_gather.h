#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/paged.h"

namespace kv::cpu {

// Calls visit(page, place, done, run) for each stretch of slots [first_slot, first_slot + count) of `row` that lies in
// one page: places [place, place + run) of pool page `page` hold the entries [done, done + run) of the request.
template <class Visit>
void for_page_runs(const PagedView& cache, int64_t row, int64_t first_slot, int64_t count, Visit&& visit) {
  const int32_t* pages = cache.page_table + row * cache.max_pages;
  for (int64_t done = 0; done < count;) {
    const int64_t slot = first_slot + done;
    const int64_t place = slot % kPageTokens;
    const int64_t run = std::min<int64_t>(kPageTokens - place, count - done);
    visit(static_cast<int64_t>(pages[slot / kPageTokens]), place, done, run);
    done += run;
  }
}

// Index of a slot's entry in the pools: multiply by head_dim or column_width for the vector pools.
inline int64_t pool_index(const PagedView& cache, int64_t row, int64_t slot) {
  return int64_t{cache.page_table[row * cache.max_pages + slot / kPageTokens]} * kPageTokens + slot % kPageTokens;
}

namespace detail {
template <class T>
void gather(const PagedView& cache, const T* pool, int64_t width, int64_t row, int64_t first_slot, int64_t count,
            T* out) {
  for_page_runs(cache, row, first_slot, count, [&](int64_t page, int64_t place, int64_t done, int64_t run) {
    std::memcpy(out + done * width, pool + (page * kPageTokens + place) * width,
                static_cast<size_t>(run * width) * sizeof(T));
  });
}
}  // namespace detail

// Copies slots [first_slot, first_slot + count) of a row to contiguous memory, `out` [count, head_dim].
inline void gather_keys(const PagedView& cache, int64_t row, int64_t first_slot, int64_t count, float* out) {
  detail::gather(cache, cache.keys.as<float>(), cache.head_dim, row, first_slot, count, out);
}

inline void gather_values(const PagedView& cache, int64_t row, int64_t first_slot, int64_t count, float* out) {
  detail::gather(cache, cache.values.as<float>(), cache.head_dim, row, first_slot, count, out);
}

// `out` [count].
inline void gather_positions(const PagedView& cache, int64_t row, int64_t first_slot, int64_t count, int32_t* out) {
  detail::gather(cache, cache.positions, 1, row, first_slot, count, out);
}

inline void gather_expires(const PagedView& cache, int64_t row, int64_t first_slot, int64_t count, int32_t* out) {
  detail::gather(cache, cache.expires, 1, row, first_slot, count, out);
}

}  // namespace kv::cpu
