#include "kernels/redundancy.h"

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/unit_keys.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;  // keys i of a block (16 a warp), and keys j of a step

// Of every row: retained[slot] = r(slot), and forgiven[slot] = Σ of the S_i,slot that r(i) = slot sets to zero, in
// units of 2^−40: integer sums do not depend on the order of the atomic additions.
struct Work {
  const double* inverse_norms;   // [rows, max_length]
  const double* sums;            // [rows, head_dim], Σ k̂
  int32_t* retained;             // [rows, max_length]
  unsigned long long* forgiven;  // [rows, max_length], two's complement
  float* means;                  // [rows, max_length]
};

constexpr double kUnit = 0x1p40;

// S_ij > threshold, decided in double from the keys themselves.
__device__ bool similar_exactly(const bf16* a, const bf16* b, int dim, double inverse_norms, double threshold) {
  double product = 0;
  for (int d = 0; d < dim; ++d) product += double{__bfloat162float(a[d])} * __bfloat162float(b[d]);
  return product * inverse_norms > threshold;
}

// r(i) of 64 keys of a row: tiles of 64 keys j from the newest on, left when all 64 have what they want. Products are
// of the bf16 keys themselves, which is exact; norms come in afterwards.
template <int D>
__global__ void __launch_bounds__(kThreads) find_retained(RedundancyArgs args, Work work, int64_t tiles) {
  extern __shared__ __align__(16) unsigned char shared[];
  bf16* own = reinterpret_cast<bf16*>(shared);
  bf16* other = own + kTile * kStride<D>;
  __shared__ float other_inverse[kTile];
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, kTile);
  const int64_t length = cache.lengths[at.row];
  if (!is_due(args.rows_due, at.row) || at.first >= length) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int dim = cache.head_dim;
  const double* inverse_norms = work.inverse_norms + at.row * cache.max_length;
  const int64_t wanted = args.retain == RedundancyArgs::Retain::last
                             ? 1
                             : max(int64_t{1}, static_cast<int64_t>(static_cast<float>(length) * args.retain_ratio));
  // A dot of dim products summed in f32, of vectors normalised to one, is at most this far from the exact one; what
  // lies closer to the threshold is decided in double, so that the choice never depends on rounding.
  const float doubt = static_cast<float>(2 * dim + 16) * 0x1p-23f;

  stage_rows<D>(own, kTile, dim, threadIdx.x, kThreads,
                [&](int r) { return at.first + r < length ? key_of(cache, at.row, at.first + r) : nullptr; });
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  HeldRows<D, 1> rows;
  rows.load(own, warp * 16, lane);
  // A lane's two rows are lane / 4 and lane / 4 + 8 of its warp; the four lanes of a row agree on its state.
  int own_row[2];
  float inverse[2];
  int64_t hits[2], found[2];
  bool open[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    own_row[half] = warp * 16 + lane / 4 + 8 * half;
    open[half] = at.first + own_row[half] < length;
    inverse[half] = open[half] ? static_cast<float>(inverse_norms[at.first + own_row[half]]) : 0.0f;
    hits[half] = 0;
    found[half] = 0;
  }
  for (int64_t end = length; end > 0; end -= min(end, int64_t{kTile})) {
    if (!__syncthreads_or(open[0] || open[1])) break;
    const int64_t first = max(int64_t{0}, end - kTile);
    stage_rows<D>(other, kTile, dim, threadIdx.x, kThreads,
                  [&](int r) { return first + r < end ? key_of(cache, at.row, first + r) : nullptr; });
    commit_copies();
    if (threadIdx.x < kTile) {
      other_inverse[threadIdx.x] =
          first + threadIdx.x < end ? static_cast<float>(inverse_norms[first + threadIdx.x]) : 0.0f;
    }
    wait_copies<0>();
    __syncthreads();
    float sums[1][8][4];
    rows.template times<8>(other, lane, sums);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint64_t similar = 0;
      const int64_t i = at.first + own_row[half];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = n * 8 + lane % 4 * 2 + e;
          const int64_t j = first + column;
          if (!open[half] || j >= end) continue;
          const float s = i == j ? 0.0f : sums[0][n][2 * half + e] * inverse[half] * other_inverse[column];
          bool hit = s > args.threshold;
          if (i != j && fabsf(s - args.threshold) <= doubt) {
            hit = similar_exactly(own + own_row[half] * kStride<D>, other + column * kStride<D>, dim,
                                  inverse_norms[i] * inverse_norms[j], args.threshold);
          }
          if (hit) similar |= uint64_t{1} << column;
        }
      }
      similar |= __shfl_xor_sync(kWarp, similar, 1);
      similar |= __shfl_xor_sync(kWarp, similar, 2);
      if (similar == 0) continue;
      int64_t skip = wanted - hits[half] - 1;  // newer hits of this tile that are not the one wanted
      hits[half] += __popcll(similar);
      if (hits[half] >= wanted) {
        for (; skip > 0; --skip) similar &= ~(uint64_t{1} << (63 - __clzll(similar)));
        found[half] = first + 63 - __clzll(similar);
        open[half] = false;
      } else {
        found[half] = first + __ffsll(static_cast<long long>(similar)) - 1;  // the oldest so far
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t i = at.first + own_row[half];
    if (lane % 4 == 0 && i < length) work.retained[at.row * cache.max_length + i] = static_cast<int32_t>(found[half]);
  }
}

// One warp a key i: forgiven[r(i)] += S_i,r(i). S_ii is 0 already; nothing is forgiven twice.
__global__ void forgive(RedundancyArgs args, Work work, int64_t tiles) {
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, kTile);
  const int64_t length = cache.lengths[at.row];
  if (!is_due(args.rows_due, at.row)) return;
  const int lane = threadIdx.x % 32;
  const int64_t base = at.row * cache.max_length;
  for (int64_t i = at.first + threadIdx.x / 32; i < min(length, at.first + kTile); i += kThreads / 32) {
    const int64_t j = work.retained[base + i];
    if (i == j) continue;
    float a[kLaneValues], b[kLaneValues];
    load_lanes(key_of(cache, at.row, i), cache.head_dim, lane, a);
    load_lanes(key_of(cache, at.row, j), cache.head_dim, lane, b);
    double product = 0;
#pragma unroll
    for (int e = 0; e < kLaneValues; ++e) product += double{a[e]} * b[e];
    product = warp_reduce(product, Add()) * work.inverse_norms[base + i] * work.inverse_norms[base + j];
    if (lane == 0) {
      atomicAdd(&work.forgiven[base + j], static_cast<unsigned long long>(__double2ll_rn(product * kUnit)));
    }
  }
}

// One warp a key j: the column mean m_j = (k̂_j·Σ k̂ − ‖k̂_j‖² − what is forgiven) / n.
__global__ void column_means(RedundancyArgs args, Work work, int64_t tiles) {
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, kTile);
  const int64_t length = cache.lengths[at.row];
  if (!is_due(args.rows_due, at.row)) return;
  const int lane = threadIdx.x % 32;
  const int dim = cache.head_dim;
  const int64_t base = at.row * cache.max_length;
  for (int64_t j = at.first + threadIdx.x / 32; j < min(length, at.first + kTile); j += kThreads / 32) {
    float x[kLaneValues];
    load_lanes(key_of(cache, at.row, j), dim, lane, x);
    const double inverse = work.inverse_norms[base + j];
    double all = 0, self = 0;
#pragma unroll
    for (int e = 0; e < kLaneValues; ++e) {
      const int d = lane_index(dim, lane, e);
      if (d >= dim) continue;
      const double unit = x[e] * inverse;
      all += unit * work.sums[at.row * dim + d];
      self += unit * unit;
    }
    all = warp_reduce(all, Add());
    self = warp_reduce(self, Add());
    const double forgiven = static_cast<double>(static_cast<long long>(work.forgiven[base + j])) / kUnit;
    if (lane == 0) work.means[base + j] = static_cast<float>((all - self - forgiven) / static_cast<double>(length));
  }
}

constexpr int kSoftmaxThreads = 512;

__global__ void softmax_means(RedundancyArgs args, Work work) {
  const int64_t row = blockIdx.x;
  if (!is_due(args.rows_due, row)) return;
  const int64_t length = args.cache.lengths[row];
  const float* means = work.means + row * args.cache.max_length;
  float largest = -kInfinity;
  for (int64_t j = threadIdx.x; j < length; j += kSoftmaxThreads) largest = fmaxf(largest, means[j]);
  largest = block_reduce(largest, -kInfinity, Larger());
  double total = 0;
  for (int64_t j = threadIdx.x; j < length; j += kSoftmaxThreads) total += expf(means[j] - largest);
  const float sum = static_cast<float>(block_reduce(total, 0.0, Add()));
  for (int64_t j = threadIdx.x; j < length; j += kSoftmaxThreads) {
    args.scores[row * args.pitch + j] = expf(means[j] - largest) / sum;
  }
}

}  // namespace

void redundancy(const RedundancyArgs& args) {
  const PagedView& cache = args.cache;
  const int64_t entries = cache.rows * cache.max_length;
  if (entries == 0) return;
  const Scratch<double> inverse_norms(entries), sums(cache.rows * cache.head_dim);
  const Scratch<int32_t> retained(entries);
  Scratch<unsigned long long> forgiven(entries);
  const Scratch<float> means(entries);
  sum_unit_keys({.cache = cache,
                 .rows_due = args.rows_due,
                 .guard = 1e-8,
                 .inverse_norms = inverse_norms.data(),
                 .sums = sums.data()});
  forgiven.fill_zero();
  const Work work{inverse_norms.data(), sums.data(), retained.data(), forgiven.data(), means.data()};
  const int64_t tiles = ceil_div(cache.max_length, kTile);
  with_width(cache.head_dim, [&](auto width) {
    constexpr int D = width;
    launch(find_retained<D>, cache.rows * tiles, kThreads, 2 * kTile * kStride<D> * sizeof(bf16), args, work, tiles);
  });
  launch(forgive, cache.rows * tiles, kThreads, 0, args, work, tiles);
  launch(column_means, cache.rows * tiles, kThreads, 0, args, work, tiles);
  launch(softmax_means, cache.rows, kSoftmaxThreads, 0, args, work);
}

}  // namespace kv::cuda
