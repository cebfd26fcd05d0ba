#pragma once

#include <cstdint>

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// The attention that an entry has received, as ForesightKV's features want it (001): three columns for each query head
// h of the group, [cumulative, decayed, recent] x [group], from column 0 on. Appended entries begin with zeros.

// Adds a block's column sums to `recent`; those of a segment that begins before position `early_tokens`, to cumulative
// and decayed: 001's events begin behind the first B tokens, whose sums count as if an event had just been.
struct AttentionColumnsAddArgs {
  PagedView cache;
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  Slots<const float> sums;  // row · group + h
  int group = 1;
  int32_t early_tokens = 0;
  float* pool_columns = nullptr;
};

// An event: cumulative += recent, decayed = decay · decayed + recent, then features = [recent, cumulative, decayed] and
// recent = 0, for every entry of the rows that are due.
struct AttentionColumnsFoldArgs {
  PagedView cache;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  int group = 1;
  float decay = 0.9F;
  float* pool_columns = nullptr;
  Slots<float> features;  // row · planes + first_plane + feature · group + h
  int planes = 0;         // features of a row
  int first_plane = 0;
};

namespace cpu {
void attention_columns_add(const AttentionColumnsAddArgs& args);
void attention_columns_fold(const AttentionColumnsFoldArgs& args);
}  // namespace cpu
namespace cuda {
void attention_columns_add(const AttentionColumnsAddArgs& args);
void attention_columns_fold(const AttentionColumnsFoldArgs& args);
}  // namespace cuda

}  // namespace kv
