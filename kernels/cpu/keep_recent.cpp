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

}  // namespace kv::cpu
