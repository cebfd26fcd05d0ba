#include "kernels/expiry.h"

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void expiry(const ExpiryArgs& args) {
  KV_CHECK(args.window >= 1);
  parallel_for(args.layers * args.segment_count, [&](int64_t task) {
    const Segment& segment = args.segments[task % args.segment_count];
    const int64_t layer = task / args.segment_count;
    for (int64_t i = 0; i < segment.count; ++i) {
      int32_t* expires = args.expires + args.place(segment, layer, i, 0);
      for (int64_t head = 0; head < args.kv_heads; ++head) expires[head] = expiry_of(args, segment, layer, i, head);
    }
  });
}

}  // namespace kv::cpu
