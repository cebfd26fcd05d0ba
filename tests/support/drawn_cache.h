#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged.h"
#include "tests/support/backends.h"

namespace kv::ref {

// A cache layer whose keys and values the backend draws (kernels/random_normal.h, sigma 1), for rows too long to be
// made on the host. A row's pages lie together in the pools, in an order of their own; places beyond its length are
// NaN.
class DrawnCache {
 public:
  DrawnCache(Backend& backend, std::vector<int32_t> lengths, int kv_heads, int head_dim, uint64_t seed);

  PagedView view() const;  // without positions
  // [length, head_dim], slot by slot.
  std::vector<float> download_keys(int64_t row) const { return download(keys_, row); }
  std::vector<float> download_values(int64_t row) const { return download(values_, row); }

 private:
  void map_pages();
  Tensor draw(uint64_t seed) const;
  std::vector<float> download(const Tensor& pool, int64_t row) const;

  Backend* backend_;
  std::vector<int32_t> host_lengths_, host_table_;
  int kv_heads_, head_dim_;
  int32_t max_length_ = 0;
  int64_t max_pages_ = 0, pool_pages_ = 0;
  Tensor keys_, values_, table_, lengths_;
};

}  // namespace kv::ref
