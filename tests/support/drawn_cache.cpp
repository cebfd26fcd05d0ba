#include "tests/support/drawn_cache.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "kernels/random_normal.h"

namespace kv::ref {

namespace {

int32_t pages_for(int32_t slots) { return (slots + kPageTokens - 1) / kPageTokens; }

}  // namespace

DrawnCache::DrawnCache(Backend& backend, std::vector<int32_t> lengths, int kv_heads, int head_dim, uint64_t seed)
    : backend_(&backend), host_lengths_(std::move(lengths)), kv_heads_(kv_heads), head_dim_(head_dim) {
  map_pages();
  keys_ = draw(seed);
  values_ = draw(seed + 1);
}

void DrawnCache::map_pages() {
  max_length_ = *std::max_element(host_lengths_.begin(), host_lengths_.end());
  max_pages_ = pages_for(max_length_);
  host_table_.assign(host_lengths_.size() * static_cast<size_t>(max_pages_), -1);
  for (size_t row = 0; row < host_lengths_.size(); ++row) {
    const int64_t pages = pages_for(host_lengths_[row]);
    constexpr int64_t kStride = 4099;  // a prime: where it does not divide their number, each page comes once
    KV_CHECK(pages % kStride != 0);
    int32_t* table = host_table_.data() + static_cast<int64_t>(row) * max_pages_;
    for (int64_t page = 0; page < pages; ++page) {
      table[page] = static_cast<int32_t>(pool_pages_ + (page + 1) * kStride % pages);
    }
    pool_pages_ += pages;
  }
  table_ = upload_array(*backend_, host_table_);
  lengths_ = upload_array(*backend_, host_lengths_);
}

Tensor DrawnCache::draw(uint64_t seed) const {
  const int64_t page_values = int64_t{kPageTokens} * head_dim_, drawn = pool_pages_ * page_values;
  Tensor pool(*backend_, backend_->activation_type(), drawn + page_values);
  backend_->random_normal({.output = pool.ref(), .count = drawn, .seed = seed});
  for (size_t row = 0; row < host_lengths_.size(); ++row) {
    const int32_t pages = pages_for(host_lengths_[row]), empty = pages * kPageTokens - host_lengths_[row];
    const int64_t last = host_table_[row * static_cast<size_t>(max_pages_) + static_cast<size_t>(pages) - 1];
    // The page behind all is as it was made.
    backend_->copy(pool.at(((last + 1) * kPageTokens - empty) * head_dim_).data, pool.at(drawn).data,
                   static_cast<size_t>(empty) * static_cast<size_t>(head_dim_) * bytes_of(pool.dtype()));
  }
  return pool;
}

PagedView DrawnCache::view() const {
  return {.keys = keys_.ref(),
          .values = values_.ref(),
          .page_table = table_.ref().as<int32_t>(),
          .lengths = lengths_.ref().as<int32_t>(),
          .pool_pages = pool_pages_,
          .rows = std::ssize(host_lengths_),
          .max_pages = max_pages_,
          .max_length = max_length_,
          .kv_heads = kv_heads_,
          .head_dim = head_dim_};
}

std::vector<float> DrawnCache::download(const Tensor& pool, int64_t row) const {
  const int32_t pages = pages_for(host_lengths_[static_cast<size_t>(row)]);
  const int64_t page_values = int64_t{kPageTokens} * head_dim_;
  const int32_t* table = host_table_.data() + row * max_pages_;
  const int64_t first = *std::min_element(table, table + pages);
  const std::vector<float> all = download_activations(*backend_, pool.at(first * page_values), pages * page_values);
  std::vector<float> slots(all.size());
  for (int64_t page = 0; page < pages; ++page) {
    std::copy_n(all.data() + (table[page] - first) * page_values, page_values, slots.data() + page * page_values);
  }
  return slots;
}

}  // namespace kv::ref
