#include "sim/cache.h"

#include <algorithm>
#include <numeric>

#include "kernels/append.h"
#include "kernels/compact.h"

namespace kv {

namespace {

int64_t pages_for(int64_t entries) { return (entries + kPageTokens - 1) / kPageTokens; }

// Moves the first `elements` into a larger tensor.
void enlarge(Backend& backend, Tensor& tensor, DType dtype, int64_t elements) {
  Tensor larger(backend, dtype, elements);
  if (tensor) backend.copy(larger.ref().data, tensor.ref().data, tensor.bytes());
  tensor = std::move(larger);
}

}  // namespace

Cache::Cache(Backend& backend, const CacheShape& shape)
    : backend_(backend), shape_(shape), layers_(static_cast<size_t>(shape.layers)) {
  reset();
}

void Cache::reset() {
  used_pages_ = 0;
  peak_pages_ = 0;
  free_pages_.resize(static_cast<size_t>(pool_pages_));
  std::iota(free_pages_.rbegin(), free_pages_.rend(), 0);  // lowest page first out
  for (Layer& layer : layers_) {
    layer.lengths.assign(static_cast<size_t>(rows()), 0);
    layer.max_pages = 1;
    layer.page_table.assign(static_cast<size_t>(rows()), -1);
    upload(layer);
  }
}

void Cache::upload(Layer& layer) {
  layer.device_lengths.reserve(backend_, DType::i32, static_cast<int64_t>(layer.lengths.size()));
  layer.device_lengths.upload(layer.lengths.data(), layer.lengths.size() * sizeof(int32_t));
  layer.device_table.reserve(backend_, DType::i32, static_cast<int64_t>(layer.page_table.size()));
  layer.device_table.upload(layer.page_table.data(), layer.page_table.size() * sizeof(int32_t));
}

PagedView Cache::view(int layer) const {
  const Layer& own = layers_.at(static_cast<size_t>(layer));
  return {.keys = keys_.ref(),
          .values = values_.ref(),
          .positions = static_cast<const int32_t*>(positions_.ref().data),
          .columns = static_cast<const float*>(columns_.ref().data),
          .page_table = own.device_table.ref().as<int32_t>(),
          .lengths = own.device_lengths.ref().as<int32_t>(),
          .rows = rows(),
          .max_pages = own.max_pages,
          .max_length = *std::max_element(own.lengths.begin(), own.lengths.end()),
          .kv_heads = shape_.kv_heads,
          .head_dim = shape_.head_dim,
          .column_width = shape_.column_width};
}

std::span<const int32_t> Cache::lengths(int layer) const { return layers_.at(static_cast<size_t>(layer)).lengths; }

float* Cache::columns() { return static_cast<float*>(columns_.ref().data); }

void Cache::grow_pool(int64_t pages) {
  const int64_t target = std::max(pages, pool_pages_ + pool_pages_ / 2);
  const DType type = backend_.activation_type();
  const int64_t page_elements = static_cast<int64_t>(kPageTokens) * shape_.head_dim;
  enlarge(backend_, keys_, type, target * page_elements);
  enlarge(backend_, values_, type, target * page_elements);
  enlarge(backend_, positions_, DType::i32, target * kPageTokens);
  if (shape_.column_width > 0) {
    enlarge(backend_, columns_, DType::f32, target * kPageTokens * shape_.column_width);
  }
  for (int64_t page = target - 1; page >= pool_pages_; --page) free_pages_.push_back(static_cast<int32_t>(page));
  pool_pages_ = target;
}

int32_t Cache::take_page() {
  KV_CHECK(!free_pages_.empty());
  const int32_t page = free_pages_.back();
  free_pages_.pop_back();
  ++used_pages_;
  peak_pages_ = std::max(peak_pages_, used_pages_);
  return page;
}

void Cache::widen_table(Layer& layer, int64_t pages) {
  if (pages <= layer.max_pages) return;
  const int64_t wider = std::max(pages, layer.max_pages * 2);
  std::vector<int32_t> table(static_cast<size_t>(rows() * wider), -1);
  for (int64_t row = 0; row < rows(); ++row) {
    std::copy_n(layer.page_table.begin() + row * layer.max_pages, layer.max_pages, table.begin() + row * wider);
  }
  layer.page_table = std::move(table);
  layer.max_pages = wider;
}

void Cache::resize_row(Layer& layer, int64_t row, int32_t length) {
  const int64_t before = pages_for(layer.lengths[static_cast<size_t>(row)]);
  const int64_t after = pages_for(length);
  int32_t* table = layer.page_table.data() + row * layer.max_pages;
  for (int64_t page = before; page < after; ++page) table[page] = take_page();
  for (int64_t page = before - 1; page >= after; --page) {
    free_pages_.push_back(table[page]);
    table[page] = -1;
    --used_pages_;
  }
  layer.lengths[static_cast<size_t>(row)] = length;
}

void Cache::append(int layer_index, std::span<const Segment> segments, const Segment* device_segments, ConstRef keys,
                   ConstRef values) {
  Layer& layer = layers_.at(static_cast<size_t>(layer_index));
  int64_t new_pages = 0;
  int64_t longest = 0;
  int64_t max_count = 0;
  for (const Segment& segment : segments) {
    max_count = std::max<int64_t>(max_count, segment.count);
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const int64_t length = layer.lengths[static_cast<size_t>(segment.sequence * shape_.kv_heads + head)];
      new_pages += pages_for(length + segment.count) - pages_for(length);
      longest = std::max(longest, length + segment.count);
    }
  }
  if (new_pages > static_cast<int64_t>(free_pages_.size())) {
    // All layers of a block grow alike: asking for the block's whole need at once spares a copy a layer.
    grow_pool(pool_pages_ + new_pages * shape_.layers);
  }
  widen_table(layer, pages_for(longest));
  for (const Segment& segment : segments) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const int64_t row = segment.sequence * shape_.kv_heads + head;
      resize_row(layer, row, layer.lengths[static_cast<size_t>(row)] + segment.count);
    }
  }
  upload(layer);
  if (max_count == 0) return;
  backend_.append({.keys = keys,
                   .values = values,
                   .segments = device_segments,
                   .segment_count = static_cast<int64_t>(segments.size()),
                   .max_count = max_count,
                   .cache = view(layer_index),
                   .pool_keys = keys_.ref(),
                   .pool_values = values_.ref(),
                   .pool_positions = static_cast<int32_t*>(positions_.ref().data),
                   .pool_columns = columns()});
}

void Cache::evict(int layer_index, const uint8_t* keep, int64_t pitch, std::span<const uint8_t> rows_due,
                  std::span<const int32_t> kept) {
  Layer& layer = layers_.at(static_cast<size_t>(layer_index));
  Tensor due(backend_, DType::u8, rows());
  due.upload(rows_due.data(), rows_due.size());
  backend_.compact({.cache = view(layer_index),
                    .keep = keep,
                    .keep_pitch = pitch,
                    .rows_due = due.ref().as<uint8_t>(),
                    .pool_keys = keys_.ref(),
                    .pool_values = values_.ref(),
                    .pool_positions = static_cast<int32_t*>(positions_.ref().data),
                    .pool_columns = columns()});
  for (int64_t row = 0; row < rows(); ++row) {
    if (rows_due[static_cast<size_t>(row)]) resize_row(layer, row, kept[static_cast<size_t>(row)]);
  }
  upload(layer);
}

int64_t Cache::entries() const {
  int64_t sum = 0;
  for (const Layer& layer : layers_) sum = std::accumulate(layer.lengths.begin(), layer.lengths.end(), sum);
  return sum;
}

size_t Cache::column_page_bytes() const {
  return static_cast<size_t>(kPageTokens) * static_cast<size_t>(shape_.column_width) * sizeof(float);
}

size_t Cache::page_bytes() const {
  const size_t element = bytes_of(backend_.activation_type());
  return static_cast<size_t>(kPageTokens) * (2 * static_cast<size_t>(shape_.head_dim) * element + sizeof(int32_t)) +
         column_page_bytes();
}

}  // namespace kv
