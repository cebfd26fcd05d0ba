#include "kernels/lag_relative.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMostDims = 256;  // check_cache

enum class Side { kKeys, kValues };

__device__ const bf16* vector_of(const PagedView& cache, Side side, int64_t row, int64_t slot) {
  return side == Side::kKeys ? key_of(cache, row, slot) : value_of(cache, row, slot);
}

// Slots that another partition follows begin at `sinks` and end here; none in a short row.
__device__ int64_t judged_end(const LagRelativeArgs& args, int64_t length) {
  if (length < args.sinks + 2 * int64_t{args.lag}) return args.sinks;
  return args.sinks + ((length - args.sinks) / args.lag - 1) * args.lag;
}

// What nothing follows, and short rows.
__global__ void fill_others(LagRelativeArgs args, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t slot = at.first + threadIdx.x, length = args.cache.lengths[at.row];
  if (slot >= length || !is_due(args.rows_due, at.row)) return;
  const int64_t end = judged_end(args, length);
  if (slot >= args.sinks && slot < end) return;
  const bool ramp = length < args.sinks + 2 * int64_t{args.lag} && slot >= args.sinks;
  args.scores.row(at.row)[slot] =
      ramp ? static_cast<float>(slot - args.sinks) / static_cast<float>(length - args.sinks) : 1.0f;
}

// Smallest value and extent of each channel over `count` entries, a thread a channel.
__device__ void find_range(const PagedView& cache, Side side, int64_t row, int64_t first, int count, float* low,
                           float* span) {
  for (int d = threadIdx.x; d < cache.head_dim; d += kThreads) {
    float least = kInfinity, most = -kInfinity;
    for (int64_t slot = first; slot < first + count; ++slot) {
      const float x = to_f32(vector_of(cache, side, row, slot)[d]);
      least = fminf(least, x);
      most = fmaxf(most, x);
    }
    low[d] = least;
    span[d] = most - least;
  }
}

// Spread over the channels of one vector in that range; one warp. In double, as entries far outside of the range have a
// large mean and a small spread.
__device__ double spread(const bf16* vector, int dim, const float* low, const float* span, int lane) {
  if (dim < 2) return 0;
  float x[kLaneValues];
  load_lanes(vector, dim, lane, x);
  double relative[kLaneValues];
  double sum = 0;
#pragma unroll
  for (int e = 0; e < kLaneValues; ++e) {
    const int d = lane_index(dim, lane, e);
    relative[e] = d < dim && span[d] > 0 ? (double{x[e]} - low[d]) / span[d] : 0.0;
    sum += relative[e];
  }
  const double mean = warp_reduce(sum, Add()) / dim;
  double squares = 0;
#pragma unroll
  for (int e = 0; e < kLaneValues; ++e) {
    if (lane_index(dim, lane, e) < dim) squares += (relative[e] - mean) * (relative[e] - mean);
  }
  return sqrt(warp_reduce(squares, Add()) / (dim - 1));
}

__device__ void write_scores(const LagRelativeArgs& args, const double* shares, float* scores) {
  for (int i = threadIdx.x; i < args.lag; i += kThreads) {
    if (args.scale == LagRelativeArgs::Scale::kShare) {
      scores[i] = static_cast<float>(shares[i]);
      continue;
    }
    int rank = 0;
    for (int j = 0; j < args.lag; ++j) rank += shares[j] < shares[i] || (shares[j] == shares[i] && j < i);
    scores[i] = static_cast<float>(rank) / static_cast<float>(args.lag);
  }
}

// One block a partition that another one follows.
__global__ void __launch_bounds__(kThreads) score_partitions(LagRelativeArgs args, int64_t partitions) {
  extern __shared__ double spreads[];  // [lag], then shares [lag]
  __shared__ float low[kMostDims], span[kMostDims];
  const PagedView& cache = args.cache;
  const int64_t row = blockIdx.x / partitions, first = args.sinks + blockIdx.x % partitions * args.lag;
  if (!is_due(args.rows_due, row) || first >= judged_end(args, cache.lengths[row])) return;
  double* shares = spreads + args.lag;
  const int lane = threadIdx.x % 32;
  for (const Side side : {Side::kKeys, Side::kValues}) {
    find_range(cache, side, row, first + args.lag, args.lag, low, span);
    __syncthreads();
    for (int i = threadIdx.x / 32; i < args.lag; i += kThreads / 32) {
      const double value = spread(vector_of(cache, side, row, first + i), cache.head_dim, low, span, lane);
      if (lane == 0) spreads[i] = value;
    }
    __syncthreads();
    double most = 0, total = 0;
    for (int i = threadIdx.x; i < args.lag; i += kThreads) most = Larger()(most, spreads[i]);
    most = block_reduce(most, 0.0, Larger());
    for (int i = threadIdx.x; i < args.lag; i += kThreads) total += exp(spreads[i] - most);
    total = block_reduce(total, 0.0, Add());
    for (int i = threadIdx.x; i < args.lag; i += kThreads) {
      shares[i] = (side == Side::kKeys ? 0.0 : shares[i]) + 0.5 * (exp(spreads[i] - most) / total);
    }
    __syncthreads();
  }
  write_scores(args, shares, args.scores.row(row) + first);
}

}  // namespace

void lag_relative(const LagRelativeArgs& args) {
  KV_CHECK(args.sinks >= 0 && args.lag >= 1 && args.lag <= kLargestLag);
  check_cache(args.cache);
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  launch(fill_others, args.cache.rows * tiles, kThreads, 0, args, tiles);
  const int64_t partitions = (args.cache.max_length - args.sinks) / args.lag - 1;
  if (partitions < 1) return;
  launch(score_partitions, args.cache.rows * partitions, kThreads, 2 * sizeof(double) * args.lag, args, partitions);
}

}  // namespace kv::cuda
