#include "kernels/redundancy.h"

#include "kernels/cuda/stage_keys.cuh"
#include "kernels/cuda/unit_keys.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;  // keys j of a step of the scan

// Per row, retained[slot] = r(slot), and forgiven[slot] = Σ of the S_i,slot that r(i) = slot sets to zero, in
// units of 2^−40: integer sums do not depend on the order of the atomic additions.
struct Work {
  const double* inverse_norms;   // [rows, max_length]
  const double* sums;            // [rows, head_dim], Σ k̂
  int32_t* retained;             // [rows, max_length]
  unsigned long long* forgiven;  // [rows, max_length], two's complement
  float* means;                  // [rows, max_length]
};

constexpr double kUnit = 0x1p40;
constexpr double kGuard = 1e-8;

// S_ij > threshold, decided in double from the keys themselves: row i of one tile and j of another.
template <int D>
__device__ bool similar_exactly(const bf16* tile_i, int i, const bf16* tile_j, int j, int dim, double inverse_norms,
                                double threshold) {
  double product = 0;
  for (int d = 0; d < dim; ++d) {
    product += double{to_f32(tile_i[place<D>(i, d)])} * to_f32(tile_j[place<D>(j, d)]);
  }
  return product * inverse_norms > threshold;
}

// r(i) of a block's keys i: tiles of kTile keys j from the newest on, left when all have what they want. Products are
// of the bf16 keys themselves, which is exact; norms come in afterwards. Nearly all tiles hold nothing that could be
// similar to a warp's keys, which the largest product of each key decides; only the others are looked at pair by pair.
// The kernel is one long function: with a key's state (open, hits, found) in a struct of functions, ptxas 13 spills it,
// 480 bytes in place of 180 at head_dim 128, and wants 216 registers in place of 167 at 256.
template <int D>
struct Scan {
  static constexpr int kM = KeyTile<D>::kM;
  static constexpr int kKeys = KeyTile<D>::kKeys;  // i of a block, 16 · kM a warp
  static constexpr size_t kSharedBytes = (kKeys + 2 * kTile) * D * sizeof(bf16);
};

template <int D>
__global__ void __launch_bounds__(kThreads, D <= 128 ? 3 : 2)
    find_retained(RedundancyArgs args, Work work, int64_t tiles) {
  constexpr int M = Scan<D>::kM;
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* keys = reinterpret_cast<bf16*>(shared);
  bf16* others = keys + Scan<D>::kKeys * D;  // two tiles
  __shared__ float others_inverse[2][kTile];
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, Scan<D>::kKeys);
  const int length = cache.lengths[at.row];  // slots fit 32 bits
  const int first_key = static_cast<int>(at.first);
  if (!is_due(args.rows_due, at.row) || first_key >= length) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int dim = cache.head_dim;
  const double* inverse_norms = work.inverse_norms + at.row * cache.max_length;
  const int wanted = args.retain == RedundancyArgs::Retain::kLast
                         ? 1
                         : max(1, static_cast<int>(static_cast<float>(length) * args.retain_ratio));
  // A dot of dim products summed in f32, of vectors normalised to one, is at most this far from the exact one; what
  // lies closer to the threshold is decided in double, so that the choice never depends on rounding.
  const float doubt = static_cast<float>(2 * dim + 16) * 0x1p-23f;

  // A tile's norms are read one tile ahead, and wait in a register.
  const auto inverse_at = [&](int first) {
    const int slot = first + static_cast<int>(threadIdx.x);
    return threadIdx.x < kTile && first >= 0 && slot < length ? static_cast<float>(inverse_norms[slot]) : 0.0f;
  };
  const int newest = (length - 1) / kTile * kTile;
  float upcoming = inverse_at(newest);
  const auto stage = [&](int first, int buffer) {
    stage_keys<D, kTile>(others + buffer * kTile * D, cache, at.row, first, length, threadIdx.x, kThreads);
    commit_copies();
    if (threadIdx.x < kTile) others_inverse[buffer][threadIdx.x] = upcoming;
    upcoming = inverse_at(first - kTile);
  };
  stage_keys<D, Scan<D>::kKeys>(keys, cache, at.row, first_key, length, threadIdx.x, kThreads);
  stage(newest, 0);
  wait_copies<0>();
  __syncthreads();
  HeldRows<D, M> rows;
  rows.load(keys, warp * 16 * M, lane);
  // A lane's rows are lane / 4 and lane / 4 + 8 of each 16 of its warp; the four lanes of a row agree on its state.
  const auto row_of = [&](int m, int half) { return (warp * M + m) * 16 + lane / 4 + 8 * half; };
  float inverse[M][2];
  int hits[M][2] = {}, found[M][2] = {};
  bool open[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first_key + row_of(m, half);
      open[m][half] = i < length;
      inverse[m][half] = i < length ? static_cast<float>(inverse_norms[i]) : 0.0f;
    }
  }

  // The hits of one key i in the tile that begins with slot `first`.
  const auto visit = [&](int m, int half, int first, int buffer, const float(&sums)[8][4]) {
    uint64_t similar = 0;
    const int i = first_key + row_of(m, half);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = n * 8 + lane % 4 * 2 + e;
        const int j = first + column;
        if (!open[m][half] || j >= length) continue;
        const float s =
            i == j ? 0.0f : sums[n][2 * half + e] * inverse[m][half] * others_inverse[buffer][column];  // S_ii = 0
        bool hit = s > args.threshold;
        if (i != j && fabsf(s - args.threshold) <= doubt) {
          hit = similar_exactly<D>(keys, row_of(m, half), others + buffer * kTile * D, column, dim,
                                   inverse_norms[i] * inverse_norms[j], args.threshold);
        }
        if (hit) similar |= uint64_t{1} << column;
      }
    }
    similar |= __shfl_xor_sync(kWarp, similar, 1);
    similar |= __shfl_xor_sync(kWarp, similar, 2);
    if (similar == 0) return;
    int skip = wanted - hits[m][half] - 1;  // newer hits of this tile that are not the one wanted
    hits[m][half] += __popcll(similar);
    if (hits[m][half] >= wanted) {
      for (; skip > 0; --skip) similar &= ~(uint64_t{1} << (63 - __clzll(similar)));
      found[m][half] = first + 63 - __clzll(similar);
      open[m][half] = false;
    } else {
      found[m][half] = first + __ffsll(static_cast<long long>(similar)) - 1;  // the oldest so far
    }
  };

  for (int first = newest, buffer = 0; first >= 0; first -= kTile, buffer = 1 - buffer) {
    bool is_open = false;
#pragma unroll
    for (int m = 0; m < M; ++m) is_open |= open[m][0] || open[m][1];
    wait_copies<0>();
    if (!__syncthreads_or(is_open)) break;
    if (first > 0) stage(first - kTile, 1 - buffer);
    if (!__any_sync(kWarp, is_open)) continue;
    float sums[M][8][4];
    rows.template times<8>(others + buffer * kTile * D, lane, sums);
    float largest[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) largest[m][0] = largest[m][1] = -kInfinity;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 norms = *reinterpret_cast<const float2*>(&others_inverse[buffer][n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float pair = fmaxf(sums[m][n][2 * half] * norms.x, sums[m][n][2 * half + 1] * norms.y);
          largest[m][half] = fmaxf(largest[m][half], pair);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool may_hit = open[m][half] && largest[m][half] * inverse[m][half] > args.threshold - 2 * doubt;
        if (__any_sync(kWarp, may_hit)) visit(m, half, first, buffer, sums[m]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first_key + row_of(m, half);
      if (lane % 4 == 0 && i < length) work.retained[at.row * cache.max_length + i] = found[m][half];
    }
  }
}

// Slots of a block of the kernels that go over keys one by one, and those that this lane's eight share in one step.
constexpr int kKeys = 256;
__device__ int64_t shared_slot(const RowTile& at, int step) {
  return at.first + step * (kThreads / 8) + static_cast<int>(threadIdx.x) / 8;
}

// forgiven[r(i)] += S_i,r(i). S_ii is 0 already; nothing is forgiven twice.
template <int D>
__global__ void __launch_bounds__(kThreads) forgive(RedundancyArgs args, Work work, int64_t tiles) {
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, kKeys);
  const int64_t length = cache.lengths[at.row];
  if (!is_due(args.rows_due, at.row) || at.first >= length) return;
  const int lane = threadIdx.x % 32;
  const int64_t base = at.row * cache.max_length;
#pragma unroll 2
  for (int step = 0; step < kKeys / (kThreads / 8); ++step) {
    const int64_t slot = shared_slot(at, step), i = min(slot, length - 1);
    const int64_t j = work.retained[base + i];
    SharedKey<D> key, retained;
    key.load(key_of(cache, at.row, i), cache.head_dim, lane);
    retained.load(key_of(cache, at.row, j), cache.head_dim, lane);
    const double product = key.times(retained.x) * work.inverse_norms[base + i] * work.inverse_norms[base + j];
    if (lane % 8 == 0 && slot < length && i != j) {
      atomicAdd(&work.forgiven[base + j], static_cast<unsigned long long>(__double2ll_rn(product * kUnit)));
    }
  }
}

// The column mean m_j = (k̂_j·Σ k̂ − ‖k̂_j‖² − what is forgiven) / n, where ‖k̂_j‖ = ‖k_j‖ / (‖k_j‖ + guard).
template <int D>
__global__ void __launch_bounds__(kThreads) column_means(RedundancyArgs args, Work work, int64_t tiles) {
  using Key = SharedKey<D>;
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, kKeys);
  const int64_t length = cache.lengths[at.row];
  if (!is_due(args.rows_due, at.row) || at.first >= length) return;
  const int lane = threadIdx.x % 32;
  const int dim = cache.head_dim;
  const int64_t base = at.row * cache.max_length;
  double sums[Key::kValues];
#pragma unroll
  for (int e = 0; e < Key::kValues; ++e) {
    const int d = lane % 8 * Key::kValues + e;
    sums[e] = d < dim ? work.sums[at.row * dim + d] : 0.0;
  }
#pragma unroll 2
  for (int step = 0; step < kKeys / (kThreads / 8); ++step) {
    const int64_t slot = shared_slot(at, step), j = min(slot, length - 1);
    Key key;
    key.load(key_of(cache, at.row, j), dim, lane);
    const double inverse = work.inverse_norms[base + j];
    const double all = key.times(sums) * inverse;
    const double norm = 1 - kGuard * inverse;
    const double forgiven = static_cast<double>(static_cast<long long>(work.forgiven[base + j])) / kUnit;
    if (lane % 8 == 0 && slot < length) {
      work.means[base + j] = static_cast<float>((all - norm * norm - forgiven) / static_cast<double>(length));
    }
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
    args.scores.row(row)[j] = expf(means[j] - largest) / sum;
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
                 .guard = kGuard,
                 .inverse_norms = inverse_norms.data(),
                 .sums = sums.data()});
  forgiven.fill_zero();
  const Work work{inverse_norms.data(), sums.data(), retained.data(), forgiven.data(), means.data()};
  const int64_t tiles = ceil_div(cache.max_length, kKeys);
  with_width(cache.head_dim, [&](auto width) {
    constexpr int D = width;
    const int64_t scans = ceil_div(cache.max_length, Scan<D>::kKeys);
    launch(find_retained<D>, cache.rows * scans, kThreads, Scan<D>::kSharedBytes, args, work, scans);
    launch(forgive<D>, cache.rows * tiles, kThreads, 0, args, work, tiles);
    launch(column_means<D>, cache.rows * tiles, kThreads, 0, args, work, tiles);
  });
  launch(softmax_means, cache.rows, kSoftmaxThreads, 0, args, work);
}

}  // namespace kv::cuda
