#include "kernels/seen_pairs.h"

#include <algorithm>

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/expiry.h"

namespace kv::cpu {

namespace {

// Queries of the segment that see a slot which expires then.
int64_t queries_that_see(const Segment& segment, int64_t length, int64_t slot, int32_t expires) {
  const int64_t first = std::max<int64_t>(0, slot - (length - segment.count));
  const int64_t end = std::min<int64_t>(segment.count, int64_t{expires} - segment.first_position);
  return std::max<int64_t>(0, end - first);
}

}  // namespace

void seen_pairs(const SeenPairsArgs& args) {
  const PagedView& cache = args.cache;
  parallel_for(args.segment_count * cache.kv_heads, [&](int64_t task) {
    const Segment& segment = args.segments[task / cache.kv_heads];
    const int64_t row = int64_t{segment.sequence} * cache.kv_heads + task % cache.kv_heads;
    const int64_t length = cache.lengths[row];
    const int64_t before = length - segment.count;
    const int64_t first = cache.expires ? std::clamp<int64_t>(length - cache.expiring, 0, before) : before;
    int64_t pairs = first * segment.count;
    for (int64_t slot = first; slot < length; ++slot) {
      const int32_t expires = cache.expires ? cache.expires[pool_index(cache, row, slot)] : kNeverExpires;
      pairs += queries_that_see(segment, length, slot, expires);
    }
    args.pairs[row] += pairs;
  });
}

}  // namespace kv::cpu
