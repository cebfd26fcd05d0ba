#pragma once

#include <cstdint>
#include <limits>

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// The attention that an entry has received, as ForesightKV's features want it (001): two or three columns for each
// query head h of the group, [cumulative, decayed, recent] x [group], from column 0 on. Without `recent` an interval's
// sums come at its end from elsewhere. Appended entries begin with zeros.

// Adds a block's column sums to `recent`; those of a segment that begins before position `early_tokens`, to cumulative
// and decayed: 001's events begin behind the first B tokens, whose sums count as if an event had just been.
struct AttentionColumnsAddArgs {
  static constexpr int32_t kAllEarly = std::numeric_limits<int32_t>::max();
  PagedView cache;
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  Slots<const float> sums;  // row · group + h
  int group = 1;
  int32_t early_tokens = 0;  // kAllEarly: nothing goes to `recent`, which need not be there
  float* pool_columns = nullptr;
};

// An event: cumulative += recent, decayed = decay · decayed + recent, for every entry of the rows that are due; then
// features = [recent x recent_planes, cumulative, decayed], and recent = 0. Without the column, the interval's sums are
// the first of these features already; rows_counted names rows of which they were added as early, too, to both.
struct AttentionColumnsFoldArgs {
  PagedView cache;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  int group = 1;
  float decay = 0.9F;
  bool has_recent = true;
  const uint8_t* rows_counted = nullptr;  // [rows]; null = none
  float* pool_columns = nullptr;
  Slots<float> features;  // row · planes + first_plane + feature · group + h
  int planes = 0;         // features of a row
  int first_plane = 0;
  int recent_planes = 1;
};

// Columns of an entry, and features from first_plane on.
inline int64_t columns_needed(const AttentionColumnsAddArgs& args) {
  return (args.early_tokens == args.kAllEarly ? 2 : 3) * args.group;
}
inline int64_t columns_needed(const AttentionColumnsFoldArgs& args) { return (args.has_recent ? 3 : 2) * args.group; }
inline int64_t planes_written(const AttentionColumnsFoldArgs& args) { return (args.recent_planes + 2) * args.group; }

namespace cpu {
void attention_columns_add(const AttentionColumnsAddArgs& args);
void attention_columns_fold(const AttentionColumnsFoldArgs& args);
}  // namespace cpu
namespace cuda {
void attention_columns_add(const AttentionColumnsAddArgs& args);
void attention_columns_fold(const AttentionColumnsFoldArgs& args);
}  // namespace cuda

}  // namespace kv
