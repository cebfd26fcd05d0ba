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

// The same, oldest first: of a sequence that has seen n tokens, ordered[i] is the vector of position n − window + i.
// Where there is no such position it is left alone.
struct OrderRecentArgs {
  ConstRef recent;                // [sequences, window, width]
  const int32_t* seen = nullptr;  // [sequences]
  int64_t sequences = 0;
  int window = 0;
  int64_t width = 0;
  Ref ordered;  // [sequences, window, width]
};

namespace cpu {
void keep_recent(const KeepRecentArgs& args);
void order_recent(const OrderRecentArgs& args);
}  // namespace cpu
namespace cuda {
void keep_recent(const KeepRecentArgs& args);
void order_recent(const OrderRecentArgs& args);
}  // namespace cuda

}  // namespace kv
