#include "kernels/check_pages.h"

#include <vector>

namespace kv::cpu {

namespace {

bool may_share(const PagedView& cache, int64_t owner, int64_t row) {
  return cache.sharing_rows > 1 && owner / cache.max_pages / cache.sharing_rows == row / cache.sharing_rows;
}

}  // namespace

void check_pages(const PagedView& cache) {
  std::vector<int64_t> owners(static_cast<size_t>(cache.pool_pages), -1);  // numbers of entries
  for (int64_t row = 0; row < cache.rows; ++row) {
    const int32_t length = cache.lengths[row];
    if (length < 0 || length > longest_row(cache)) throw_page_error(cache, {.row = row, .value = length});
    for (int64_t entry = 0; entry * kPageTokens < length; ++entry) {
      const int64_t number = row * cache.max_pages + entry;
      const int32_t page = cache.page_table[number];
      const PageFault fault{.row = row, .entry = entry, .value = page};
      if (page < 0 || page >= cache.pool_pages) throw_page_error(cache, fault);
      int64_t& owner = owners[static_cast<size_t>(page)];
      if (owner >= 0 && !may_share(cache, owner, row)) {
        throw_page_error(cache, {.row = row, .entry = entry, .value = page, .owner = owner});
      }
      owner = number;
    }
  }
}

}  // namespace kv::cpu
