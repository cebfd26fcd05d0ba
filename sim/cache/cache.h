#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/growing_tensor.h"
#include "kernels/paged.h"
#include "kernels/tensor.h"
#include "sim/cache/block.h"

namespace kv {

struct CacheShape {
  int sequences = 0;
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int column_width = 0;      // the policy's per-entry floats, stored, moved, freed and counted with K and V
  bool page_bounds = false;  // of every page's keys, kept up to date (PagedView::bounds)
  // Tokens for which every entry is seen, where some then expire (sim/policy/admission.h); 0: none does.
  int window = 0;
};

// Bytes of one page: K, V, positions, expiries, bounds and columns.
size_t page_bytes(const CacheShape& shape, DType type);
// Of one entry as the full cache has it: key, value and position.
size_t plain_entry_bytes(int head_dim, DType type);
// Bytes of so many columns in one page.
size_t column_page_bytes(int column_width);
// Bytes of the bounds of one page; 0 where the cache has none.
size_t bound_page_bytes(const CacheShape& shape, DType type);

// A paged, ragged KV cache: every (sequence, layer, KV head) has its own length and its own pages of 16 entries out of
// one pool. Eviction is physical: kept entries move together and the freed pages go back to the pool at once.
// Only the loop (sim/replay/loop.h) mutates it; policies and metrics see PagedViews. Row = sequence · kv_heads + head.
// Where entries expire (CacheShape::window) those of a sequence that have are swept away together: no later than the
// first block that ends kSweepEvery of its tokens after its last sweep. Until then views say how many of the newest
// slots may have expired. Each sequence has its own sweeps, so that what lies in its pages depends on no other.
class Cache {
 public:
  static constexpr int kSweepEvery = 16;  // tokens

  Cache(Backend& backend, const CacheShape& shape);
  // A copy of everything resident, in memory of its own: a pool of the pages that are held, or of `pages` if these are
  // more.
  Cache clone(int64_t pages = 0) const;
  size_t clone_bytes(int64_t pages = 0) const;
  // Those that are held, with those that `room` [sequences] more entries of every head need.
  int64_t pages_with(std::span<const int32_t> room) const { return used_pages_ + new_pages(room); }
  // What grow() would allocate for `room` more entries of every head.
  size_t growth_bytes(std::span<const int32_t> room) const;

  const CacheShape& shape() const { return shape_; }
  int64_t rows() const { return static_cast<int64_t>(shape_.sequences) * shape_.kv_heads; }

  // The view is valid until the next grow, settle, reserve or reset. What the host knows of lengths, entries and pages
  // is as of the last grow, advance or settle: between evict() and settle() the backend alone knows better.
  PagedView view(int layer) const;
  // The rows of all layers, [layers, sequences, kv_heads], for ops that go through all of them at once.
  PagedView view_of_layers() const;
  std::span<const int32_t> lengths(int layer) const;  // [rows], host

  // Makes room in every layer for `steps` blocks of these segments (host) and counts the first one's entries, on the
  // backend, too. append() then writes what they are.
  void grow(std::span<const Segment> segments, int steps = 1);
  // Counts one more of the blocks that grow() made room for, on the host; on the backend the op `advance` does.
  void advance(std::span<const Segment> segments);
  // Lengths of all layers on the backend, [layers, rows].
  int32_t* device_lengths() { return device_lengths_.ref().as<int32_t>(); }

  // Writes the block's entries: keys and values [tokens, kv_heads, head_dim]; `expires` as kernels/append.h has it.
  void append(int layer, const Block& block, ConstRef keys, ConstRef values, const int32_t* expires = nullptr);
  // Until when the entries are seen that the last append() of every layer has written: [layers, tokens, kv_heads].
  void write_expiries(const Block& block, const int32_t* expires);

  // Keeps the entries whose slots are 1 in `keep`, in the due rows (both in backend memory; null: all); counts them
  // there.
  void evict(int layer, Slots<const uint8_t> keep, const uint8_t* rows_due);
  // What has expired by the block's end leaves every layer of those sequences (1; 0: those stay as they are), as by
  // evict(); `leaving` sees each layer's mask before. Ops alone, beside what that does.
  void sweep(const Block& block, std::span<const uint8_t> sequences,
             const std::function<void(int layer, Slots<const uint8_t> keep)>& leaving);
  // Whether so many tokens of a sequence came that it is time for one.
  bool wants_sweep(int sequence) const {
    return shape_.window > 0 && unswept_[static_cast<size_t>(sequence)] >= kSweepEvery;
  }
  // After the last evict of an event, which counts on the backend alone: takes up the new lengths and frees the pages
  // that no row needs any more. One download of the lengths and one upload of the tables an event.
  void settle();

  // Makes the pool at least that large, at once; grow() enlarges it by eighths. There is no second copy while it
  // grows (kernels/growing_tensor.h).
  void reserve(int64_t pages);

  float* columns();  // pool [pages, 16, column_width], null without columns

  int64_t entries() const;  // resident, over everything
  int64_t used_pages() const { return used_pages_; }
  int64_t used_pages(int sequence) const;  // of all its layers and heads
  int64_t peak_pages() const { return peak_pages_; }
  size_t page_bytes() const;         // K, V, positions and columns of one page
  size_t column_page_bytes() const;  // of which columns and bounds
  size_t bound_page_bytes() const;   // of which bounds
  size_t kv_page_bytes() const { return page_bytes() - column_page_bytes(); }
  size_t bytes() const { return static_cast<size_t>(pool_pages_) * page_bytes(); }  // of the whole pool
  void reset();

 private:
  // The same for the rows of a view, `lengths` of which are on the backend, where none leaves but of the newest slots.
  void evict_newest(const PagedView& view, int32_t* lengths, Slots<const uint8_t> keep, const uint8_t* rows_due,
                    int64_t newest);
  int64_t all_rows() const { return rows() * shape_.layers; }
  int64_t new_pages(std::span<const int32_t> room) const;  // beyond those that are held
  int64_t most_unswept() const { return *std::max_element(unswept_.begin(), unswept_.end()); }
  const uint8_t* rows_of(std::span<const uint8_t> sequences);  // on the backend; null: all
  int64_t larger_pool(int64_t missing) const { return pool_pages_ + std::max(missing, pool_pages_ / 8); }
  // Calls with the index (layer · rows + row) of every row of the segment's sequence, in every layer.
  template <class Visit>
  void for_each_row(const Segment& segment, const Visit& visit) const;
  void gather_pages(std::span<const int32_t> pages, Cache& copy) const;
  int32_t take_page();
  void hold_pages(int64_t index, int64_t pages);
  void widen_tables(int64_t pages);
  void upload_tables();             // where they have changed
  void publish();                   // lengths, and tables where they have changed
  void note_max_length(int layer);  // of what is resident

  Backend* backend_;
  CacheShape shape_;
  std::vector<int32_t> lengths_;      // [layers, rows]
  std::vector<int32_t> held_;         // [layers, rows] pages
  std::vector<int32_t> page_tables_;  // [layers, rows, max_pages], −1 = unused
  int64_t max_pages_ = 0;
  std::vector<int64_t> max_lengths_;  // [layers] of the blocks there is room for
  bool tables_changed_ = true;
  Tensor device_lengths_, device_tables_;
  GrowingTensor keys_, values_, positions_, expires_, bounds_, columns_;  // the pool
  Tensor unexpired_;                                                      // the mask of a sweep
  Tensor swept_;                                                          // [layers, rows], where not all are
  std::vector<int64_t> unswept_;                                          // [sequences] tokens since the last sweep
  int64_t pool_pages_ = 0;
  std::vector<int32_t> free_pages_;
  int64_t used_pages_ = 0;
  int64_t peak_pages_ = 0;
};

}  // namespace kv
