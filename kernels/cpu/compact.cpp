#include "kernels/compact.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

struct Pools {
  float* keys;
  float* values;
  int32_t* positions;
  int32_t* expires;
  float* columns;
  int64_t head_dim;
  int64_t column_width;
};

// `to` and `from` are different entries, so the copies never overlap.
void move_entry(const Pools& pools, int64_t to, int64_t from) {
  const auto vector_bytes = static_cast<size_t>(pools.head_dim) * sizeof(float);
  std::memcpy(pools.keys + to * pools.head_dim, pools.keys + from * pools.head_dim, vector_bytes);
  std::memcpy(pools.values + to * pools.head_dim, pools.values + from * pools.head_dim, vector_bytes);
  pools.positions[to] = pools.positions[from];
  if (pools.expires) pools.expires[to] = pools.expires[from];
  if (pools.columns) {
    std::memcpy(pools.columns + to * pools.column_width, pools.columns + from * pools.column_width,
                static_cast<size_t>(pools.column_width) * sizeof(float));
  }
}

}  // namespace

void compact(const CompactArgs& args) {
  const PagedView& cache = args.cache;
  const Pools pools{.keys = args.pool_keys.as<float>(),
                    .values = args.pool_values.as<float>(),
                    .positions = args.pool_positions,
                    .expires = args.pool_expires,
                    .columns = args.pool_columns,
                    .head_dim = cache.head_dim,
                    .column_width = cache.column_width};
  parallel_for(cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    const uint8_t* keep = args.keep.row(row);
    const int64_t length = cache.lengths[row];
    int64_t kept = std::max<int64_t>(0, length - args.newest);
    for (int64_t slot = kept; slot < length; ++slot) {
      if (!keep[slot]) continue;
      if (slot != kept) move_entry(pools, pool_index(cache, row, kept), pool_index(cache, row, slot));
      ++kept;
    }
    if (args.lengths) args.lengths[row] = static_cast<int32_t>(kept);
  });
}

}  // namespace kv::cpu
