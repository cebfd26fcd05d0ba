#include "kernels/check_pages.h"

#include <algorithm>
#include <string>

#include "kernels/error.h"

namespace kv {

int64_t longest_row(const PagedView& cache) { return std::min(cache.max_pages * kPageTokens, cache.max_length); }

void throw_page_error(const PagedView& cache, const PageFault& fault) {
  const auto text = [](int64_t number) { return std::to_string(number); };
  const auto entry_of_row = [&](int64_t entry, int64_t row) { return "entry " + text(entry) + " of row " + text(row); };
  if (fault.entry < 0) {
    throw PageError("page table: row " + text(fault.row) + " has a length of " + text(fault.value) +
                    " (expected 0 to " + text(longest_row(cache)) + ": room for " + text(cache.max_pages) +
                    " pages of " + text(kPageTokens) + " and at most " + text(cache.max_length) + ")");
  }
  const std::string what = "page table: " + entry_of_row(fault.entry, fault.row) + " is " + text(fault.value);
  if (fault.owner < 0) {
    throw PageError(what + " (expected 0 to " + text(cache.pool_pages - 1) + ": the pool has " +
                    text(cache.pool_pages) + " pages)");
  }
  throw PageError(what + ", which is " + entry_of_row(fault.owner % cache.max_pages, fault.owner / cache.max_pages) +
                  ", too (expected a page of its own, of the " + text(cache.pool_pages) + " in the pool)");
}

}  // namespace kv
