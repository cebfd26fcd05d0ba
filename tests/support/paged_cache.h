#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged.h"
#include "kernels/tensor.h"
#include "tests/support/backends.h"

namespace kv::ref {

// A cache layer as plain rows (row = sequence · kv_heads + head), what references read.
struct CacheRows {
  int kv_heads = 1;
  int head_dim = 1;
  int column_width = 0;
  std::vector<std::vector<float>> keys = {};         // [row][slot · head_dim + d]
  std::vector<std::vector<float>> values = {};       // [row][slot · head_dim + d]
  std::vector<std::vector<int32_t>> positions = {};  // [row][slot], ascending
  std::vector<std::vector<float>> columns = {};    // [row][slot · column_width + c]; empty rows when column_width is 0
  std::vector<std::vector<int32_t>> expires = {};  // [row][slot]; no rows: the cache stores none
  int64_t expiring = 0;                            // as PagedView has it

  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
  int64_t length(int64_t row) const { return static_cast<int64_t>(positions[static_cast<size_t>(row)].size()); }
  int64_t max_length() const;
};

// Random rows of the given lengths (one a row). Positions are 0, 1, 2, …; `position_gap` > 1 spreads them out:
// 0, gap, 2·gap, …
CacheRows random_rows(const std::vector<int32_t>& lengths, int kv_heads, int head_dim, uint32_t seed,
                      int column_width = 0, int position_gap = 1);

// The same rows in a backend's paged pools: pages in shuffled order, NaN (−1 for positions) in places and pages that
// hold nothing, −1 in unused page-table entries. `spare_pages` extra pages are mapped after each row's last one. The
// first `below` pages of the pools are never mapped; nor do they cost memory of the host.
class PagedCache {
 public:
  PagedCache(Backend& backend, CacheRows rows, int spare_pages = 0, int64_t below = 0);

  // What the pools hold, rounded to the backend's activation type. References start from this.
  const CacheRows& rows() const { return rows_; }

  PagedView view() const;
  Ref pool_keys() { return keys_.ref(); }
  Ref pool_values() { return values_.ref(); }
  int32_t* pool_positions() { return data_of<int32_t>(positions_); }
  int32_t* pool_expires() { return rows_.expires.empty() ? nullptr : data_of<int32_t>(expires_); }
  float* pool_columns() { return rows_.column_width ? data_of<float>(columns_) : nullptr; }

  // Lengths as view() reports them from now on, on host and backend. Tests of append and compact move them.
  void set_lengths(const std::vector<int32_t>& lengths);

  // Reads the first lengths[row] slots of each row back from the pools.
  CacheRows download() const;

 private:
  // The place of a slot's entry, counted from the first page after those that are never mapped.
  size_t place_of(size_t row, size_t slot) const;

  Backend* backend_;
  CacheRows rows_;
  std::vector<int32_t> host_lengths_;
  std::vector<int32_t> host_table_;
  int64_t max_pages_ = 0;
  int64_t below_ = 0;
  Tensor keys_, values_, positions_, expires_, columns_, table_, lengths_;
};

}  // namespace kv::ref
