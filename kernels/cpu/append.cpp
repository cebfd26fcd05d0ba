#include "kernels/append.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/expiry.h"

namespace kv::cpu {

namespace {

void append_row(const AppendArgs& args, const Segment& segment, int64_t head) {
  const PagedView& cache = args.cache;
  const int64_t dim = cache.head_dim;
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + head;
  const auto* keys = args.keys.as<float>();
  const auto* values = args.values.as<float>();
  auto* pool_keys = args.pool_keys.as<float>();
  auto* pool_values = args.pool_values.as<float>();
  const int64_t first_slot = cache.lengths[row] - segment.count;
  KV_CHECK(first_slot >= 0);
  for_page_runs(cache, row, first_slot, segment.count, [&](int64_t page, int64_t place, int64_t done, int64_t run) {
    for (int64_t i = 0; i < run; ++i) {
      const int64_t to = page * kPageTokens + place + i;
      const int64_t from = ((segment.first_token + done + i) * cache.kv_heads + head) * dim;
      std::memcpy(pool_keys + to * dim, keys + from, static_cast<size_t>(dim) * sizeof(float));
      std::memcpy(pool_values + to * dim, values + from, static_cast<size_t>(dim) * sizeof(float));
      if (args.pool_expires) {
        args.pool_expires[to] =
            args.expires ? args.expires[(segment.first_token + done + i) * cache.kv_heads + head] : kNeverExpires;
      }
      args.pool_positions[to] = segment.first_position + static_cast<int32_t>(done + i);
      if (args.pool_columns) std::fill_n(args.pool_columns + to * cache.column_width, cache.column_width, 0.0f);
    }
  });
}

}  // namespace

void append(const AppendArgs& args) {
  const int64_t heads = args.cache.kv_heads;
  parallel_for(args.segment_count * heads,
               [&](int64_t task) { append_row(args, args.segments[task / heads], task % heads); });
}

}  // namespace kv::cpu
