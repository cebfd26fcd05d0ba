#include "kernels/keep_recent.h"

#include <algorithm>
#include <cstring>

namespace kv::cpu {

void keep_recent(const KeepRecentArgs& args) {
  const auto* vectors = args.vectors.as<float>();
  auto* recent = args.recent.as<float>();
  for (int64_t s = 0; s < args.segment_count; ++s) {
    const Segment& segment = args.segments[s];
    float* const queries = recent + int64_t{segment.sequence} * args.window * args.width;
    for (int64_t i = std::max(0, segment.count - args.window); i < segment.count; ++i) {
      std::memcpy(queries + (segment.first_position + i) % args.window * args.width,
                  vectors + (segment.first_token + i) * args.width, static_cast<size_t>(args.width) * sizeof(float));
    }
  }
}

void order_recent(const OrderRecentArgs& args) {
  const auto* recent = args.recent.as<float>();
  auto* ordered = args.ordered.as<float>();
  for (int64_t s = 0; s < args.sequences; ++s) {
    const int64_t first = int64_t{args.seen[s]} - args.window, sequence = s * args.window;
    for (int64_t i = std::max<int64_t>(0, -first); i < args.window; ++i) {
      std::memcpy(ordered + (sequence + i) * args.width, recent + (sequence + (first + i) % args.window) * args.width,
                  static_cast<size_t>(args.width) * sizeof(float));
    }
  }
}

}  // namespace kv::cpu
