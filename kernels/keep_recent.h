#pragma once

#include "kernels/paged.h"

namespace kv {

// Keeps the newest `window` vectors of every sequence: that of position p in place p mod window. Of a segment it takes
// up the last min(count, window). Vectors are of the activations' type or f32.
struct KeepRecentArgs {
  ConstRef vectors;                   // [tokens, width]
  const Segment* segments = nullptr;  // at most one a sequence
  int64_t segment_count = 0;
  int64_t max_count = 0;  // no segment's is larger
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
