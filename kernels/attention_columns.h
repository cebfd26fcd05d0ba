#pragma once

#include <cstdint>
#include <limits>

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// The ends of intervals of `interval` tokens, which follow one another from position `first` on: a suffix is an
// interval's last of[k] tokens, of[0] <= of[1] <= … <= interval.
struct Suffixes {
  static constexpr int kMost = 3;
  int32_t first = 0;
  int32_t interval = 1;
  int count = 0;
  int32_t of[kMost] = {};

  // Tokens of its interval from that position on, itself among them; none is before `first`.
  constexpr int32_t left(int32_t position) const { return interval - (position - first) % interval; }
  // Tokens of suffix k that have come when position end − 1 has, of its interval; not positive: none has.
  constexpr int32_t come(int k, int32_t end) const { return of[k] - left(end - 1) + 1; }
};

// The attention that an entry has received, as ForesightKV's features want it (001): columns for each query head h of
// the group, [cumulative, decayed, recent, suffixes...] x [group], from column 0 on. `recent` is of all queries since
// the last event, suffix k of those among an interval's last of[k]; a suffix costs an entry 4 · group bytes. Without
// `recent` an interval's sums come at its end from elsewhere. Appended entries begin with zeros.

// Adds a block's column sums to `recent`; those of a segment that begins before position suffixes.first, to cumulative
// and decayed: 001's events begin behind the first B tokens, whose sums count as if an event had just been. To the
// suffixes in which a later segment ends it adds `suffix_sums`, those of its tokens that are in each; a segment that
// has a suffix's first token replaces what an interval before has left. Where a segment lies is read when the op runs,
// in recorded steps, too.
struct AttentionColumnsAddArgs {
  static constexpr int32_t kAllEarly = std::numeric_limits<int32_t>::max();
  PagedView cache;
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  const uint8_t* sequences = nullptr;  // [sequences], 0 = skip; null = all
  Slots<const float> sums;             // row · group + h
  // (row · suffixes.count + k) · group + h, of rows whose segment ends in a suffix; null: segments are single tokens,
  // or end in none.
  Slots<const float> suffix_sums;
  int group = 1;
  Suffixes suffixes;  // first = kAllEarly: nothing goes to `recent`, which need not be there
  float* pool_columns = nullptr;
};

// An event: cumulative += recent, decayed = decay · decayed + recent, for every entry of the rows that are due; then
// features = [suffixes..., recent x recent_planes, cumulative, decayed], and recent = 0. Without the column, the
// interval's sums are the first of these features already (there are no suffixes then); rows_counted names rows of
// which they were added as early, too, to both.
struct AttentionColumnsFoldArgs {
  PagedView cache;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  int group = 1;
  float decay = 0.9F;
  bool has_recent = true;
  int suffix_count = 0;
  const uint8_t* rows_counted = nullptr;  // [rows]; null = none
  float* pool_columns = nullptr;
  Slots<float> features;  // row · planes + first_plane + feature · group + h
  int planes = 0;         // features of a row
  int first_plane = 0;
  int recent_planes = 1;
};

// Columns of an entry, and features from first_plane on.
constexpr int64_t columns_needed(const AttentionColumnsAddArgs& args) {
  return (args.suffixes.first == args.kAllEarly ? 2 : 3 + args.suffixes.count) * args.group;
}
constexpr int64_t columns_needed(const AttentionColumnsFoldArgs& args) {
  return (args.has_recent ? 3 + args.suffix_count : 2) * args.group;
}
constexpr int64_t planes_written(const AttentionColumnsFoldArgs& args) {
  return (args.suffix_count + args.recent_planes + 2) * args.group;
}

namespace cpu {
void attention_columns_add(const AttentionColumnsAddArgs& args);
void attention_columns_fold(const AttentionColumnsFoldArgs& args);
}  // namespace cpu
namespace cuda {
void attention_columns_add(const AttentionColumnsAddArgs& args);
void attention_columns_fold(const AttentionColumnsFoldArgs& args);
}  // namespace cuda

}  // namespace kv
