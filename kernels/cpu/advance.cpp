#include "kernels/advance.h"

namespace kv::cpu {

void advance(const AdvanceArgs& args) {
  for (int64_t s = 0; s < args.segment_count; ++s) {
    Segment& segment = args.segments[s];
    KV_CHECK(segment.count == 0 || segment.count == 1);
    if (segment.count == 0) continue;
    args.positions[segment.first_token] = ++segment.first_position;
    for (int layer = 0; layer < args.layers; ++layer) {
      int32_t* lengths = args.lengths + layer * args.rows + int64_t{segment.sequence} * args.kv_heads;
      for (int head = 0; head < args.kv_heads; ++head) ++lengths[head];
    }
  }
}

}  // namespace kv::cpu
