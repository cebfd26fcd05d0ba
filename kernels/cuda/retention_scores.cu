#include "kernels/retention_scores.h"

#include <limits>

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr float kLeast = std::numeric_limits<float>::min();

// log Σ_{h < horizon} β^h. Of expm1 both differences from 1 keep all their digits however near β is to it, so that
// their quotient needs no series; where they leave the normal range, it is the limit.
__device__ float log_sum(float log_retention, float horizon) {
  const float one = expm1f(log_retention);
  return logf(one < -kLeast ? expm1f(horizon * log_retention) / one : horizon);
}

__global__ void retention_scores_kernel(RetentionScoresArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const PagedView& cache = args.cache;
  const int64_t slot = at.first + threadIdx.x;
  if (!is_due(args.rows_due, at.row) || slot >= cache.lengths[at.row]) return;
  const int64_t place = place_of(cache, at.row, slot);
  const float log_retention = cache.columns[place * cache.column_width + args.column];
  const int32_t newest = args.tokens_seen[at.row / cache.kv_heads] - 1 + args.age_offset;
  const auto age = static_cast<float>(newest - cache.positions[place]);
  args.scores.row(at.row)[slot] = age * log_retention + log_sum(log_retention, static_cast<float>(args.horizon));
}

}  // namespace

void retention_scores(const RetentionScoresArgs& args) {
  KV_CHECK(args.horizon >= 1 && args.column >= 0 && args.column < args.cache.column_width);
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(retention_scores_kernel, args.cache.rows * tiles, kThreads, 0, args, tiles);
}

}  // namespace kv::cuda
