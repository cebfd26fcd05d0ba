#include "kernels/cuda/unit_keys.cuh"

#include "kernels/cuda/mma.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 512;  // keys a block sums

// Partial sums go by tile, so that the order of additions depends on the length alone.
template <int D>
__global__ void __launch_bounds__(kThreads) partial_sums(UnitKeys args, double* partial, int64_t tiles) {
  using Key = SharedKey<D>;
  __shared__ double warp_sums[kWarps][D];
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, kTile);
  const int64_t length = cache.lengths[at.row];
  if (!is_due(args.rows_due, at.row) || at.first >= length) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int dim = cache.head_dim;
  const int64_t end = min(length, at.first + kTile);
  double sums[Key::kValues] = {};
#pragma unroll 2
  for (int64_t first = at.first + warp * 4; first < end; first += kWarps * 4) {
    const int64_t slot = first + lane / 8;
    Key key;
    key.load(key_of(cache, at.row, min(slot, end - 1)), dim, lane);
    const double norm = sqrt(key.times(key.x)) + args.guard;
    const double inverse = norm > 0 ? 1 / norm : 0;
    if (slot >= end) continue;
    if (lane % 8 == 0) args.inverse_norms[at.row * cache.max_length + slot] = inverse;
#pragma unroll
    for (int e = 0; e < Key::kValues; ++e) sums[e] += key.x[e] * inverse;
  }
#pragma unroll
  for (int e = 0; e < Key::kValues; ++e) {
    sums[e] += __shfl_xor_sync(kWarp, sums[e], 8);
    sums[e] += __shfl_xor_sync(kWarp, sums[e], 16);
    if (lane < 8) warp_sums[warp][lane * Key::kValues + e] = sums[e];
  }
  __syncthreads();
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += warp_sums[w][d];
    partial[blockIdx.x * int64_t{dim} + d] = sum;
  }
}

__global__ void add_partial_sums(UnitKeys args, const double* partial, int64_t tiles) {
  const int64_t row = blockIdx.x;
  if (!is_due(args.rows_due, row)) return;
  const int dim = args.cache.head_dim;
  const int64_t used = (args.cache.lengths[row] + kTile - 1) / kTile;
  for (int d = threadIdx.x; d < dim; d += blockDim.x) {
    double sum = 0;
    for (int64_t tile = 0; tile < used; ++tile) sum += partial[(row * tiles + tile) * dim + d];
    args.sums[row * dim + d] = sum;
  }
}

}  // namespace

void sum_unit_keys(const UnitKeys& args) {
  check_cache(args.cache);
  const int64_t tiles = ceil_div(args.cache.max_length, kTile);
  const Scratch<double> partial(args.cache.rows * tiles * args.cache.head_dim);
  with_width(args.cache.head_dim, [&](auto width) {
    launch(partial_sums<width>, args.cache.rows * tiles, kThreads, 0, args, partial.data(), tiles);
  });
  launch(add_partial_sums, args.cache.rows, 128, 0, args, partial.data(), tiles);
}

}  // namespace kv::cuda
