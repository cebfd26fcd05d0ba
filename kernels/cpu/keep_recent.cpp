#include "kernels/keep_recent.h"

#include <algorithm>
#include <cstring>

namespace kv::cpu {

void keep_recent(const KeepRecentArgs& args) {
  const auto* vectors = args.vectors.as<float>();
  auto* recent = args.recent.as<float>();
  for (int64_t s = 0; s < args.segment_count; ++s) {
    const Segment& segment = args.segments[s];
    const int64_t fresh = std::min<int64_t>(segment.count, args.window);
    if (fresh == 0) continue;
    const int64_t old = args.window - fresh;
    float* queries = recent + int64_t{segment.sequence} * args.window * args.width;
    std::memmove(queries, queries + fresh * args.width, static_cast<size_t>(old * args.width) * sizeof(float));
    std::memcpy(queries + old * args.width, vectors + (segment.first_token + segment.count - fresh) * args.width,
                static_cast<size_t>(fresh * args.width) * sizeof(float));
  }
}

}  // namespace kv::cpu
