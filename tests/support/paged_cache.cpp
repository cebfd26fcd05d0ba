#include "tests/support/paged_cache.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

namespace kv::ref {

namespace {

int64_t pages_for(int64_t slots) { return (slots + kPageTokens - 1) / kPageTokens; }

// `part` behind so many elements as the backend makes them.
Tensor place_behind(Backend& backend, int64_t elements, Tensor part) {
  if (elements == 0) return part;
  Tensor whole(backend, part.dtype(), elements + part.elements());
  backend.copy(whole.at(elements).data, part.ref().data, part.bytes());
  return whole;
}

// What is behind them.
Tensor copy_behind(Backend& backend, int64_t elements, const Tensor& whole) {
  Tensor part(backend, whole.dtype(), whole.elements() - elements);
  backend.copy(part.ref().data, whole.at(elements).data, part.bytes());
  return part;
}

}  // namespace

int64_t CacheRows::max_length() const {
  int64_t longest = 0;
  for (int64_t row = 0; row < rows(); ++row) longest = std::max(longest, length(row));
  return longest;
}

CacheRows random_rows(const std::vector<int32_t>& lengths, int kv_heads, int head_dim, uint32_t seed, int column_width,
                      int position_gap) {
  CacheRows rows{.kv_heads = kv_heads, .head_dim = head_dim, .column_width = column_width};
  for (size_t row = 0; row < lengths.size(); ++row) {
    const auto slots = static_cast<size_t>(lengths[row]);
    const auto row_seed = seed + 1000 * static_cast<uint32_t>(row);
    rows.keys.push_back(random_values(slots * static_cast<size_t>(head_dim), row_seed));
    rows.values.push_back(random_values(slots * static_cast<size_t>(head_dim), row_seed + 1));
    rows.columns.push_back(random_values(slots * static_cast<size_t>(column_width), row_seed + 2));
    std::vector<int32_t> positions(slots);
    for (size_t slot = 0; slot < slots; ++slot) positions[slot] = static_cast<int32_t>(slot) * position_gap;
    rows.positions.push_back(std::move(positions));
  }
  return rows;
}

PagedCache::PagedCache(Backend& backend, CacheRows rows, int spare_pages, int64_t below)
    : backend_(&backend), rows_(std::move(rows)), below_(below) {
  int64_t pages = 3;  // never mapped: they stay poisoned
  for (int64_t row = 0; row < rows_.rows(); ++row) {
    host_lengths_.push_back(static_cast<int32_t>(rows_.length(row)));
    const int64_t mapped = pages_for(rows_.length(row)) + spare_pages;
    pages += mapped;
    max_pages_ = std::max(max_pages_, mapped + 1);  // at least one unused entry a row
  }
  std::vector<int32_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 engine(1);
  // std::shuffle differs between standard libraries; Fisher–Yates on the raw engine does not.
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[engine() % i]);

  const auto places = static_cast<size_t>(pages) * kPageTokens;
  const auto dim = static_cast<size_t>(rows_.head_dim);
  const auto width = static_cast<size_t>(rows_.column_width);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> keys(places * dim, nan), values(places * dim, nan), columns(places * width, nan);
  std::vector<int32_t> positions(places, -1);
  std::vector<int32_t> expires(rows_.expires.empty() ? 0 : places, -1);
  host_table_.assign(static_cast<size_t>(rows_.rows() * max_pages_), -1);

  size_t next = 0;
  for (size_t row = 0; row < static_cast<size_t>(rows_.rows()); ++row) {
    rows_.keys[row] = rounded(backend, std::move(rows_.keys[row]));
    rows_.values[row] = rounded(backend, std::move(rows_.values[row]));
    const int64_t slots = rows_.length(static_cast<int64_t>(row));
    int32_t* table = host_table_.data() + static_cast<int64_t>(row) * max_pages_;
    for (int64_t page = 0; page < pages_for(slots) + spare_pages; ++page) {
      table[page] = static_cast<int32_t>(below_ + order[next++]);
    }
    for (size_t slot = 0; slot < static_cast<size_t>(slots); ++slot) {
      const size_t place = place_of(row, slot);
      std::copy_n(rows_.keys[row].data() + slot * dim, dim, keys.data() + place * dim);
      std::copy_n(rows_.values[row].data() + slot * dim, dim, values.data() + place * dim);
      if (width) std::copy_n(rows_.columns[row].data() + slot * width, width, columns.data() + place * width);
      positions[place] = rows_.positions[row][slot];
      if (!expires.empty()) expires[place] = rows_.expires[row][slot];
    }
  }
  const int64_t below_places = below_ * kPageTokens;
  keys_ = place_behind(backend, below_places * rows_.head_dim, upload_activations(backend, keys));
  values_ = place_behind(backend, below_places * rows_.head_dim, upload_activations(backend, values));
  positions_ = place_behind(backend, below_places, upload_array(backend, positions));
  expires_ = place_behind(backend, below_places, upload_array(backend, expires));
  columns_ = place_behind(backend, below_places * rows_.column_width, upload_array(backend, columns));
  table_ = upload_array(backend, host_table_);
  lengths_ = upload_array(backend, host_lengths_);
}

size_t PagedCache::place_of(size_t row, size_t slot) const {
  const auto page = static_cast<size_t>(host_table_[row * static_cast<size_t>(max_pages_) + slot / kPageTokens]);
  return (page - static_cast<size_t>(below_)) * kPageTokens + slot % kPageTokens;
}

PagedView PagedCache::view() const {
  return {.keys = keys_.ref(),
          .values = values_.ref(),
          .positions = positions_.ref().as<int32_t>(),
          .columns = rows_.column_width ? columns_.ref().as<float>() : nullptr,
          .expires = rows_.expires.empty() ? nullptr : expires_.ref().as<int32_t>(),
          .page_table = table_.ref().as<int32_t>(),
          .lengths = lengths_.ref().as<int32_t>(),
          .pool_pages = positions_.elements() / kPageTokens,
          .rows = rows_.rows(),
          .max_pages = max_pages_,
          .max_length = host_lengths_.empty() ? 0 : *std::max_element(host_lengths_.begin(), host_lengths_.end()),
          .expiring = rows_.expiring,
          .kv_heads = rows_.kv_heads,
          .head_dim = rows_.head_dim,
          .column_width = rows_.column_width};
}

void PagedCache::set_lengths(const std::vector<int32_t>& lengths) {
  host_lengths_ = lengths;
  lengths_.upload(lengths.data(), lengths.size() * sizeof(int32_t));
}

CacheRows PagedCache::download() const {
  const auto behind = [&](int64_t width, const Tensor& pool) {
    return copy_behind(*backend_, below_ * kPageTokens * width, pool);
  };
  const std::vector<float> keys = download_activations(behind(rows_.head_dim, keys_));
  const std::vector<float> values = download_activations(behind(rows_.head_dim, values_));
  const std::vector<float> columns = download_array<float>(behind(rows_.column_width, columns_));
  const std::vector<int32_t> positions = download_array<int32_t>(behind(1, positions_));
  std::vector<int32_t> expires;
  if (!rows_.expires.empty()) expires = download_array<int32_t>(behind(1, expires_));
  const auto dim = static_cast<size_t>(rows_.head_dim);
  const auto width = static_cast<size_t>(rows_.column_width);
  CacheRows out{.kv_heads = rows_.kv_heads, .head_dim = rows_.head_dim, .column_width = rows_.column_width};
  for (size_t row = 0; row < host_lengths_.size(); ++row) {
    std::vector<float> row_keys, row_values, row_columns;
    std::vector<int32_t> row_positions, row_expires;
    for (size_t slot = 0; slot < static_cast<size_t>(host_lengths_[row]); ++slot) {
      const size_t place = place_of(row, slot);
      row_keys.insert(row_keys.end(), keys.data() + place * dim, keys.data() + (place + 1) * dim);
      row_values.insert(row_values.end(), values.data() + place * dim, values.data() + (place + 1) * dim);
      row_columns.insert(row_columns.end(), columns.data() + place * width, columns.data() + (place + 1) * width);
      row_positions.push_back(positions[place]);
      if (!expires.empty()) row_expires.push_back(expires[place]);
    }
    out.keys.push_back(std::move(row_keys));
    out.values.push_back(std::move(row_values));
    out.columns.push_back(std::move(row_columns));
    out.positions.push_back(std::move(row_positions));
    if (!expires.empty()) out.expires.push_back(std::move(row_expires));
  }
  return out;
}

}  // namespace kv::ref
