#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/paged.h"

namespace kv {

struct CacheShape {
  int sequences = 0;
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int column_width = 0;  // the policy's per-entry floats, stored, moved, freed and counted with K and V
};

// A paged, ragged KV cache: every (sequence, layer, KV head) has its own length and its own pages of 16 entries out of
// one pool. Eviction is physical: kept entries move together and the freed pages go back to the pool at once.
// Only `replay` mutates it; policies and metrics see PagedViews. Row = sequence · kv_heads + head.
class Cache {
 public:
  Cache(Backend& backend, const CacheShape& shape);

  const CacheShape& shape() const { return shape_; }
  int64_t rows() const { return static_cast<int64_t>(shape_.sequences) * shape_.kv_heads; }

  // The view is valid until the next append or evict.
  PagedView view(int layer) const;
  std::span<const int32_t> lengths(int layer) const;  // [rows], host

  // Adds the block's entries: `segments` as in kernels/paged.h (host), keys and values [tokens, kv_heads, head_dim].
  void append(int layer, std::span<const Segment> segments, const Segment* device_segments, ConstRef keys,
              ConstRef values);

  // Keeps the entries with keep[row · pitch + slot] = 1 in the due rows; kept[row] counts them (host).
  void evict(int layer, const uint8_t* keep, int64_t pitch, std::span<const uint8_t> rows_due,
             std::span<const int32_t> kept);

  float* columns();  // pool [pages, 16, column_width], null without columns

  int64_t entries() const;  // resident, over everything
  int64_t used_pages() const { return used_pages_; }
  int64_t peak_pages() const { return peak_pages_; }
  size_t page_bytes() const;         // K, V, positions and columns of one page
  size_t column_page_bytes() const;  // of which columns
  void reset();

 private:
  struct Layer {
    std::vector<int32_t> lengths;     // [rows]
    std::vector<int32_t> page_table;  // [rows, max_pages], −1 = unused
    int64_t max_pages = 0;
    Tensor device_lengths;
    Tensor device_table;
  };

  int32_t take_page();
  void grow_pool(int64_t pages);
  void resize_row(Layer& layer, int64_t row, int32_t length);
  void upload(Layer& layer);
  void widen_table(Layer& layer, int64_t pages);

  Backend& backend_;
  CacheShape shape_;
  std::vector<Layer> layers_;
  Tensor keys_, values_, positions_, columns_;
  int64_t pool_pages_ = 0;
  std::vector<int32_t> free_pages_;
  int64_t used_pages_ = 0;
  int64_t peak_pages_ = 0;
};

}  // namespace kv
