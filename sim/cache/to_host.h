#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/paged.h"

namespace kv {

template <class T>
std::vector<T> to_host(Backend& backend, const T* data, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  backend.download(host.data(), data, host.size() * sizeof(T));
  return host;
}

// Positions of the first `length` entries of a row of the cache.
inline std::vector<int32_t> positions_to_host(Backend& backend, const PagedView& cache, int64_t row, int32_t length) {
  const int64_t count = (length + kPageTokens - 1) / kPageTokens;
  std::vector<int32_t> positions;
  for (const int32_t page : to_host(backend, cache.page_table + row * cache.max_pages, count)) {
    const auto page_positions = to_host(backend, cache.positions + int64_t{page} * kPageTokens, kPageTokens);
    positions.insert(positions.end(), page_positions.begin(), page_positions.end());
  }
  positions.resize(static_cast<size_t>(length));
  return positions;
}

}  // namespace kv
