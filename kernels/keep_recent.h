#pragma once

#include "kernels/paged.h"

namespace kv {

// Keeps the newest `window` vectors of every sequence, oldest first: recent[s] moves forward by the segment's count and
// takes up its last min(count, window) vectors.
struct KeepRecentArgs {
  ConstRef vectors;                   // [tokens, width]
  const Segment* segments = nullptr;  // at most one a sequence
  int64_t segment_count = 0;
  int window = 0;
  int64_t width = 0;
  Ref recent;  // [sequences, window, width]
};

namespace cpu {
void keep_recent(const KeepRecentArgs& args);
}
namespace cuda {
void keep_recent(const KeepRecentArgs& args);
}

}  // namespace kv
