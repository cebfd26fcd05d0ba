#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/paged.h"
#include "kernels/slots.h"
#include "sim/cache/block.h"
#include "sim/cache/cache.h"
#include "sim/model/projections.h"
#include "sim/model/source_info.h"

namespace kv {

// One layer during a call; every reference is valid only inside it. Row = sequence · kv_heads + head.
struct LayerView {
  Backend& backend;
  int layer = 0;
  // Only while a block is admitted: so many layers from this one on are asked about at once. Keys and pre_rope_keys are
  // those of all of them, a layer's behind another's, and all else is of the first.
  int layers = 1;
  int sequences = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  float scale = 0;
  PagedView cache;  // after the block was appended; while it is admitted, its entries may be yet to come
  std::span<const int32_t> lengths;  // [rows], host copy of cache.lengths
  float* columns = nullptr;          // pool of the entry columns, writable

  // The block just attended; when an event is scored, its segments alone.
  std::span<const Segment> segments;  // [sequences], host
  const Segment* device_segments = nullptr;
  Projections projections;
  const int32_t* expires = nullptr;  // of the block's entries, [tokens, kv_heads], backend memory; null: none do
  // One vector a query head, rows · group of them; only where a segment has tokens; null unless needed.
  Slots<const float> column_sums, column_max;
  // [tokens, q_heads], AttendArgs::log_sums of the block's queries; null unless needed, of a block of several tokens
  // also by late queries.
  const float* log_sums = nullptr;
  int64_t pitch = 0;  // of every Slots of this layer, >= cache.max_length

  // While a scorer scores, the newest queries of every sequence and, where needed, their log sums, as they are kept
  // (kernels/keep_recent.h): [sequences · window, q_heads, head_dim] and [sequences · window, q_heads]. window_rows
  // [sequences, window] says at which rows of these a sequence's lie, oldest first (WindowAttentionArgs::query_rows).
  ConstRef window_queries;
  const float* window_log_sums = nullptr;
  const int32_t* window_rows = nullptr;
  int window = 0;

  int rows() const { return sequences * kv_heads; }
  int group() const { return q_heads / kv_heads; }
};

// A layer of the cache; what belongs to a block or a scorer is left empty.
LayerView layer_view(Backend& backend, const SourceInfo& info, Cache& cache, int layer);
// To read: entry columns are left out.
LayerView layer_view(Backend& backend, const SourceInfo& info, const Cache& cache, int layer);

}  // namespace kv
