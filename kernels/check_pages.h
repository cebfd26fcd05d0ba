#pragma once

#include "kernels/paged.h"

namespace kv {

// Backend::check_pages: throws PageError, with one line that names the first offender in the order of the rows, unless
//   0 <= length <= what the row's table has room for, and <= max_length, and
//   each of the first ceil(length / 16) entries of the table is a page of the pool, 0 <= entry < pool_pages, that no
//   entry before it names, of this row or of another; with sharing_rows > 1: none of rows that it may not share with.
// Nothing else is read: not the pools, and no entry beyond the row's length.
namespace cpu {
void check_pages(const PagedView& cache);
}
namespace cuda {
void check_pages(const PagedView& cache);
}

// What a backend found. Entry e of a row r has the number r · max_pages + e.
struct PageFault {
  int64_t row = 0;
  int64_t entry = -1;  // −1: the length is at fault
  int32_t value = 0;   // the entry, or the length
  int64_t owner = -1;  // number of the entry that names the page, too; −1: the page is not in the pool
};

// The longest that a row may be.
int64_t longest_row(const PagedView& cache);

[[noreturn]] void throw_page_error(const PagedView& cache, const PageFault& fault);

// The views that an op reads: its `cache`, or that of each of its layers. What an op reads under other names, nothing
// checks.
template <class Args, class Visit>
void for_each_view(const Args& args, const Visit& visit) {
  if constexpr (requires { visit(args.cache); }) {
    visit(args.cache);
  } else if constexpr (requires { visit(args.layers->cache); }) {
    for (int64_t layer = 0; layer < args.layer_count; ++layer) visit(args.layers[layer].cache);
  }
}

}  // namespace kv
