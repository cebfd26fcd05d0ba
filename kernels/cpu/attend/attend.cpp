#include "kernels/cpu/attend/attend.h"

#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void attend(const AttendArgs& args) {
  KV_CHECK(args.q_heads % args.cache.kv_heads == 0);
  const int64_t heads = args.cache.kv_heads;
  parallel_for(args.segment_count * heads, [&](int64_t task) {
    const Segment& segment = args.segments[task / heads];
    if (segment.count == 1) attend_decode(args, segment, task % heads);
  });
  if (args.max_count > 1) attend_prefill(args);
}

}  // namespace kv::cpu
