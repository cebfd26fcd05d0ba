#include "sim/cache/cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/append.h"
#include "kernels/compact.h"
#include "kernels/embed.h"
#include "kernels/page_bounds.h"
#include "kernels/unexpired.h"
#include "kernels/write_expiries.h"

namespace kv {

namespace {

int64_t pages_for(int64_t entries) { return (entries + kPageTokens - 1) / kPageTokens; }

}  // namespace

size_t page_bytes(const CacheShape& shape, DType type) {
  const size_t expiry = shape.window > 0 ? sizeof(int32_t) : 0;
  return static_cast<size_t>(kPageTokens) * (plain_entry_bytes(shape.head_dim, type) + expiry) +
         bound_page_bytes(shape, type) + column_page_bytes(shape.column_width);
}

size_t plain_entry_bytes(int head_dim, DType type) {
  return 2 * static_cast<size_t>(head_dim) * bytes_of(type) + sizeof(int32_t);
}

size_t column_page_bytes(int column_width) {
  return static_cast<size_t>(kPageTokens) * static_cast<size_t>(column_width) * sizeof(float);
}

size_t bound_page_bytes(const CacheShape& shape, DType type) {
  return shape.page_bounds ? 2 * static_cast<size_t>(shape.head_dim) * bytes_of(type) : 0;
}

Cache::Cache(Backend& backend, const CacheShape& shape) : backend_(&backend), shape_(shape) { reset(); }

int64_t Cache::new_pages(std::span<const int32_t> room) const {
  KV_CHECK(std::ssize(room) == shape_.sequences);
  int64_t pages = 0;
  for (size_t i = 0; i < lengths_.size(); ++i) {
    const auto sequence = i % static_cast<size_t>(rows()) / static_cast<size_t>(shape_.kv_heads);
    pages += std::max<int64_t>(0, pages_for(int64_t{lengths_[i]} + room[sequence]) - held_[i]);
  }
  return pages;
}

size_t Cache::clone_bytes(int64_t pages) const {
  return static_cast<size_t>(std::max(used_pages_, pages)) * page_bytes();
}

size_t Cache::growth_bytes(std::span<const int32_t> room) const {
  const int64_t missing = new_pages(room) - std::ssize(free_pages_);
  return missing > 0 ? static_cast<size_t>(larger_pool(missing) - pool_pages_) * page_bytes() : 0;
}

// The held pages become the copy's first ones, in the order of the rows.
Cache Cache::clone(int64_t pages) const {
  Cache copy(*backend_, shape_);
  copy.reserve(std::max(used_pages_, pages));
  copy.lengths_ = lengths_;
  copy.held_ = held_;
  copy.page_tables_ = page_tables_;
  copy.max_pages_ = max_pages_;
  copy.max_lengths_ = max_lengths_;
  copy.unswept_ = unswept_;
  std::vector<int32_t> held;
  for (int32_t& page : copy.page_tables_) {
    if (page < 0) continue;
    held.push_back(page);
    page = copy.take_page();
  }
  KV_CHECK(std::ssize(held) == used_pages_);
  gather_pages(held, copy);
  copy.tables_changed_ = true;
  copy.publish();
  return copy;
}

void Cache::gather_pages(std::span<const int32_t> pages, Cache& copy) const {
  if (pages.empty()) return;
  Tensor device_pages(*backend_, DType::kI32, std::ssize(pages));
  device_pages.upload(pages.data(), pages.size_bytes());
  // `embed` copies rows of activations; a page of any type is a row of so many bytes.
  const DType row = backend_->activation_type();
  const auto gather_page = [&](const GrowingTensor& from, GrowingTensor& to, int64_t width) {
    if (!from) return;
    const auto elements = static_cast<int64_t>(static_cast<size_t>(width) * bytes_of(from.dtype()));
    backend_->embed({.table = {from.ref().data, row},
                     .ids = std::as_const(device_pages).ref().as<int32_t>(),
                     .output = {to.ref().data, row},
                     .rows = std::ssize(pages),
                     .width = elements / static_cast<int64_t>(bytes_of(row))});
  };
  const auto gather = [&](const GrowingTensor& from, GrowingTensor& to, int64_t width) {
    gather_page(from, to, kPageTokens * width);
  };
  gather_page(bounds_, copy.bounds_, int64_t{2} * shape_.head_dim);
  gather(keys_, copy.keys_, shape_.head_dim);
  gather(values_, copy.values_, shape_.head_dim);
  gather(positions_, copy.positions_, 1);
  gather(expires_, copy.expires_, 1);
  gather(columns_, copy.columns_, shape_.column_width);
}

void Cache::reset() {
  used_pages_ = 0;
  peak_pages_ = 0;
  free_pages_.resize(static_cast<size_t>(pool_pages_));
  std::iota(free_pages_.rbegin(), free_pages_.rend(), 0);  // lowest page first out
  lengths_.assign(static_cast<size_t>(all_rows()), 0);
  held_.assign(static_cast<size_t>(all_rows()), 0);
  max_lengths_.assign(static_cast<size_t>(shape_.layers), 0);
  max_pages_ = 1;
  unswept_.assign(static_cast<size_t>(shape_.sequences), 0);
  page_tables_.assign(static_cast<size_t>(all_rows()), -1);
  tables_changed_ = true;
  publish();
}

void Cache::publish() {
  device_lengths_.reserve(*backend_, DType::kI32, std::ssize(lengths_));
  device_lengths_.upload(lengths_.data(), lengths_.size() * sizeof(int32_t));
  upload_tables();
}

void Cache::upload_tables() {
  if (!tables_changed_) return;
  device_tables_.reserve(*backend_, DType::kI32, std::ssize(page_tables_));
  device_tables_.upload(page_tables_.data(), page_tables_.size() * sizeof(int32_t));
  tables_changed_ = false;
}

PagedView Cache::view(int layer) const {
  KV_CHECK(layer >= 0 && layer < shape_.layers);
  return {.keys = keys_.ref(),
          .values = values_.ref(),
          .positions = static_cast<const int32_t*>(positions_.ref().data),
          .columns = static_cast<const float*>(columns_.ref().data),
          .expires = static_cast<const int32_t*>(expires_.ref().data),
          .bounds = bounds_.ref(),
          .page_table = device_tables_.ref().as<int32_t>() + layer * rows() * max_pages_,
          .lengths = device_lengths_.ref().as<int32_t>() + layer * rows(),
          .pool_pages = pool_pages_,
          .rows = rows(),
          .max_pages = max_pages_,
          .max_length = max_lengths_[static_cast<size_t>(layer)],
          // A recorded view lasts to the sweep.
          .expiring = shape_.window > 0 ? shape_.window + std::max<int64_t>(most_unswept(), kSweepEvery) : 0,
          .kv_heads = shape_.kv_heads,
          .head_dim = shape_.head_dim,
          .column_width = shape_.column_width};
}

PagedView Cache::view_of_layers() const {
  PagedView all = view(0);
  all.rows = all_rows();
  all.max_length = *std::max_element(max_lengths_.begin(), max_lengths_.end());
  return all;
}

std::span<const int32_t> Cache::lengths(int layer) const {
  KV_CHECK(layer >= 0 && layer < shape_.layers);
  return std::span(lengths_).subspan(static_cast<size_t>(layer * rows()), static_cast<size_t>(rows()));
}

float* Cache::columns() { return static_cast<float*>(columns_.ref().data); }

void Cache::reserve(int64_t pages) {
  if (pages <= pool_pages_) return;
  const DType type = backend_->activation_type();
  const int64_t page_elements = static_cast<int64_t>(kPageTokens) * shape_.head_dim;
  keys_.grow(*backend_, type, pages * page_elements);
  values_.grow(*backend_, type, pages * page_elements);
  positions_.grow(*backend_, DType::kI32, pages * kPageTokens);
  if (shape_.window > 0) expires_.grow(*backend_, DType::kI32, pages * kPageTokens);
  if (shape_.page_bounds) bounds_.grow(*backend_, type, pages * 2 * shape_.head_dim);
  if (shape_.column_width > 0) columns_.grow(*backend_, DType::kF32, pages * kPageTokens * shape_.column_width);
  for (int64_t page = pages - 1; page >= pool_pages_; --page) free_pages_.push_back(static_cast<int32_t>(page));
  pool_pages_ = pages;
}

int32_t Cache::take_page() {
  KV_CHECK(!free_pages_.empty());
  const int32_t page = free_pages_.back();
  free_pages_.pop_back();
  ++used_pages_;
  peak_pages_ = std::max(peak_pages_, used_pages_);
  return page;
}

void Cache::widen_tables(int64_t pages) {
  if (pages <= max_pages_) return;
  const int64_t wider = std::max(pages, max_pages_ * 2);
  std::vector<int32_t> tables(static_cast<size_t>(all_rows() * wider), -1);
  for (int64_t row = 0; row < all_rows(); ++row) {
    std::copy_n(page_tables_.begin() + row * max_pages_, max_pages_, tables.begin() + row * wider);
  }
  page_tables_ = std::move(tables);
  max_pages_ = wider;
  tables_changed_ = true;
}

void Cache::hold_pages(int64_t index, int64_t pages) {
  int32_t& held = held_[static_cast<size_t>(index)];
  int32_t* table = page_tables_.data() + index * max_pages_;
  tables_changed_ |= held != pages;
  for (; held < pages; ++held) table[held] = take_page();
  for (; held > pages; --held) {
    free_pages_.push_back(table[held - 1]);
    table[held - 1] = -1;
    --used_pages_;
  }
}

template <class Visit>
void Cache::for_each_row(const Segment& segment, const Visit& visit) const {
  for (int layer = 0; layer < shape_.layers; ++layer) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      visit(layer * rows() + static_cast<int64_t>(segment.sequence) * shape_.kv_heads + head);
    }
  }
}

void Cache::grow(std::span<const Segment> segments, int steps) {
  KV_CHECK(steps > 0);
  int64_t new_pages = 0;
  int64_t longest = 0;
  const auto length_with = [&](int64_t index, const Segment& segment) {
    return lengths_[static_cast<size_t>(index)] + int64_t{segment.count} * steps;
  };
  for (const Segment& segment : segments) {
    for_each_row(segment, [&](int64_t index) {
      const int64_t length = length_with(index, segment);
      new_pages += std::max<int64_t>(0, pages_for(length) - held_[static_cast<size_t>(index)]);
      longest = std::max(longest, length);
    });
  }
  const int64_t missing = new_pages - std::ssize(free_pages_);
  if (missing > 0) reserve(larger_pool(missing));
  widen_tables(pages_for(longest));
  for (int layer = 0; layer < shape_.layers; ++layer) note_max_length(layer);
  for (const Segment& segment : segments) {
    for_each_row(segment, [&](int64_t index) {
      const int64_t length = length_with(index, segment);
      hold_pages(index, std::max<int64_t>(pages_for(length), held_[static_cast<size_t>(index)]));
      int64_t& max_length = max_lengths_[static_cast<size_t>(index / rows())];
      max_length = std::max(max_length, length);
    });
  }
  advance(segments);
  publish();
}

void Cache::advance(std::span<const Segment> segments) {
  for (const Segment& segment : segments) {
    unswept_[static_cast<size_t>(segment.sequence)] += segment.count;
    for_each_row(segment, [&](int64_t index) {
      int32_t& length = lengths_[static_cast<size_t>(index)];
      length += segment.count;
      KV_CHECK(pages_for(length) <= held_[static_cast<size_t>(index)]);
    });
  }
}

void Cache::append(int layer, const Block& block, ConstRef keys, ConstRef values, const int32_t* expires) {
  if (block.max_count == 0) return;
  KV_CHECK(!expires || shape_.window > 0);
  backend_->append({.keys = keys,
                    .values = values,
                    .expires = expires,
                    .segments = block.on_device(),
                    .segment_count = std::ssize(block.segments),
                    .max_count = block.max_count,
                    .cache = view(layer),
                    .pool_keys = keys_.ref(),
                    .pool_values = values_.ref(),
                    .pool_positions = static_cast<int32_t*>(positions_.ref().data),
                    .pool_expires = static_cast<int32_t*>(expires_.ref().data),
                    .pool_columns = columns()});
  if (!shape_.page_bounds) return;
  backend_->page_bounds({.cache = view(layer),
                         .segments = block.on_device(),
                         .segment_count = std::ssize(block.segments),
                         .max_count = block.max_count,
                         .pool_bounds = bounds_.ref()});
}

void Cache::write_expiries(const Block& block, const int32_t* expires) {
  if (block.max_count == 0) return;
  KV_CHECK(shape_.window > 0);
  backend_->write_expiries({.expires = expires,
                            .layers = shape_.layers,
                            .tokens = block.tokens,
                            .segments = block.on_device(),
                            .segment_count = std::ssize(block.segments),
                            .max_count = block.max_count,
                            .cache = view_of_layers(),
                            .pool_expires = static_cast<int32_t*>(expires_.ref().data)});
}

void Cache::evict(int layer, Slots<const uint8_t> keep, const uint8_t* rows_due) {
  evict_newest(view(layer), device_lengths() + layer * rows(), keep, rows_due,
               max_lengths_[static_cast<size_t>(layer)]);
}

void Cache::evict_newest(const PagedView& view, int32_t* lengths, Slots<const uint8_t> keep, const uint8_t* rows_due,
                         int64_t newest) {
  backend_->compact({.cache = view,
                     .keep = keep,
                     .rows_due = rows_due,
                     .newest = newest,
                     .pool_keys = keys_.ref(),
                     .pool_values = values_.ref(),
                     .pool_positions = static_cast<int32_t*>(positions_.ref().data),
                     .pool_expires = static_cast<int32_t*>(expires_.ref().data),
                     .pool_columns = columns(),
                     .lengths = lengths});
  if (shape_.page_bounds) {
    backend_->page_bounds({.cache = view, .newest = newest, .rows_due = rows_due, .pool_bounds = bounds_.ref()});
  }
}

const uint8_t* Cache::rows_of(std::span<const uint8_t> sequences) {
  if (std::all_of(sequences.begin(), sequences.end(), [](uint8_t one) { return one != 0; })) return nullptr;
  std::vector<uint8_t> rows;
  rows.reserve(static_cast<size_t>(all_rows()));
  for (int layer = 0; layer < shape_.layers; ++layer) {
    for (const uint8_t one : sequences) rows.insert(rows.end(), static_cast<size_t>(shape_.kv_heads), one);
  }
  swept_.reserve(*backend_, DType::kU8, std::ssize(rows));
  swept_.upload(rows.data(), rows.size());
  return swept_.ref().as<uint8_t>();
}

void Cache::sweep(const Block& block, std::span<const uint8_t> sequences,
                  const std::function<void(int layer, Slots<const uint8_t> keep)>& leaving) {
  KV_CHECK(shape_.window > 0 && std::ssize(sequences) == shape_.sequences);
  const uint8_t* rows_due = rows_of(sequences);
  const PagedView cache = view_of_layers();
  const int64_t pitch = (cache.max_length + kPageTokens - 1) / kPageTokens * kPageTokens;
  const Slots<uint8_t> keep = unexpired_.reserve_slots<uint8_t>(*backend_, cache.rows, pitch);
  backend_->unexpired({.cache = cache,
                       .layers = shape_.layers,
                       .rows_due = rows_due,
                       .segments = block.on_device(),
                       .segment_count = std::ssize(block.segments),
                       .keep = keep});
  for (int layer = 0; layer < shape_.layers; ++layer) leaving(layer, keep.from_row(layer * rows()));
  evict_newest(cache, device_lengths(), keep, rows_due, cache.expiring);
  for (size_t s = 0; s < sequences.size(); ++s) {
    if (sequences[s] != 0) unswept_[s] = 0;
  }
}

void Cache::settle() {
  device_lengths_.download(lengths_.data(), lengths_.size() * sizeof(int32_t));
  for (int64_t index = 0; index < all_rows(); ++index)
    hold_pages(index, pages_for(lengths_[static_cast<size_t>(index)]));
  for (int layer = 0; layer < shape_.layers; ++layer) note_max_length(layer);
  upload_tables();
}

void Cache::note_max_length(int layer) {
  const auto row_lengths = lengths(layer);
  max_lengths_[static_cast<size_t>(layer)] = *std::max_element(row_lengths.begin(), row_lengths.end());
}

int64_t Cache::entries() const { return std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0}); }

int64_t Cache::used_pages(int sequence) const {
  int64_t pages = 0;
  for_each_row({.sequence = sequence}, [&](int64_t index) { pages += held_[static_cast<size_t>(index)]; });
  return pages;
}

size_t Cache::bound_page_bytes() const { return kv::bound_page_bytes(shape_, backend_->activation_type()); }

size_t Cache::column_page_bytes() const { return kv::column_page_bytes(shape_.column_width) + bound_page_bytes(); }

size_t Cache::page_bytes() const { return kv::page_bytes(shape_, backend_->activation_type()); }

}  // namespace kv
