#include "sim/replay/fullness.h"

#include <algorithm>

namespace kv {

namespace {

struct Fullness {
  int64_t resident = 0, older = 0, asked = 0;  // over all layers and heads
  int64_t room = 0;                            // what `older` may still grow by
};

Fullness fullness_of(const Cache& cache, int sequence, int32_t done, const Capacity& capacity) {
  const CacheShape& shape = cache.shape();
  Fullness fullness;
  for (int layer = 0; layer < shape.layers; ++layer) {
    const auto first = static_cast<size_t>(sequence * shape.kv_heads);
    for (const int32_t length : cache.lengths(layer).subspan(first, static_cast<size_t>(shape.kv_heads))) {
      const int32_t older = capacity.older(length, done);
      fullness.resident += length;
      fullness.older += older;
      fullness.asked += capacity.dropped(older);
    }
  }
  fullness.room = int64_t{capacity.entries} * shape.layers * shape.kv_heads - fullness.older;
  return fullness;
}

}  // namespace

int64_t entries_left(const Cache& cache, int sequence, int32_t done, const Capacity& capacity) {
  const Fullness fullness = fullness_of(cache, sequence, done, capacity);
  return fullness.room >= 0 ? fullness.resident : fullness.resident - fullness.asked;
}

// A token brings every head one older entry at most, and none while the window fills.
int32_t tokens_until_full(const Cache& cache, int sequence, int32_t done, const Capacity& capacity) {
  const Fullness fullness = fullness_of(cache, sequence, done, capacity);
  const int64_t heads = int64_t{cache.shape().layers} * cache.shape().kv_heads;
  const int32_t filling = std::max(0, capacity.window - done);
  return filling + static_cast<int32_t>(std::max<int64_t>(0, fullness.room) / heads) + 1;
}

}  // namespace kv
