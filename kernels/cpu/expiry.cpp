#include "kernels/expiry.h"

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void expiry(const ExpiryArgs& args) {
  KV_CHECK(args.window >= 1);
  parallel_for(args.segment_count, [&](int64_t s) {
    const Segment& segment = args.segments[s];
    for (int64_t i = 0; i < segment.count; ++i) {
      int32_t* expires = args.expires + (segment.first_token + i) * args.kv_heads;
      for (int64_t head = 0; head < args.kv_heads; ++head) {
        const bool admitted = is_admitted(args, segment, i, head);
        expires[head] = admitted ? kNeverExpires : segment.first_position + static_cast<int32_t>(i) + args.window;
      }
    }
  });
}

}  // namespace kv::cpu
