#pragma once

#include "kernels/attend.h"

namespace kv::cpu {

// The two ways through attend: both compute softmax(q·K·scale)·V over the visible slots and the column statistics.

// Segments of one token: keys and values are read once, where they lie.
void attend_decode(const AttendArgs& args, const Segment& segment, int64_t kv_head);

// Longer segments: keys and values of every row are packed once, then tiles of queries multiply against them.
void attend_prefill(const AttendArgs& args);

}  // namespace kv::cpu
