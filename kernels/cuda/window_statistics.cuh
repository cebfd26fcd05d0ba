#pragma once

#include <climits>

#include "kernels/cuda/device.cuh"
#include "kernels/window_attention.h"

// What window_attention makes of the probabilities of a slot: statistics over the window's queries, of a warp's tile of
// 16·M keys and the queries that stream by.

namespace kv::cuda {

// So many columns: how many queries are as new or newer than each one's.
struct Newer {
  int of_first;
  int head_shift;
  int columns;

  __device__ int of_last() const { return of_first - ((columns - 1) >> head_shift); }
  __device__ int operator()(int i, int e) const {
    return of_first - ((i * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2) >> head_shift);
  }
};

// What add_probabilities makes of a slot's probabilities: a mean, sums over several suffixes of the queries, or the
// largest, the smallest and the sum. A lane's two columns are of the same two heads in all tiles of eight: it combines
// these; then the lanes that share them combine theirs, where a statistic is written: write(k, its values).
// Columns that it takes as a whole are added, sixteen at a time; others it splits.
template <int M>
struct Mean {
  static constexpr int kCount = 1;
  static constexpr int kBlocks = 3;  // that a multiprocessor should hold
  static constexpr bool kNewestFirst = false;
  float total[M][4] = {};

  __device__ Mean(const WindowAttentionArgs&, int64_t) {}
  // How many of the oldest queries it is not about.
  __device__ static int skipped(int) { return 0; }
  template <class Write>
  __device__ static bool takes_whole(const Newer&, const Write&) {
    return true;
  }
  __device__ void add(const float (&p)[M][2][4]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) total[m][e] += p[m][0][e] + p[m][1][e];
    }
  }
  template <class Write>
  __device__ void split(const Newer&, const float (&)[M][2][4], const Write&) {}
  template <class Write>
  __device__ void finish(const Write& write) {
    write(0, total);
  }
  __device__ static float combine(int, float a, float b) { return a + b; }
};

// From the newest query on one sum grows, and is a suffix's where that begins.
template <int M, int Suffixes>
struct SuffixSums {
  static constexpr int kCount = Suffixes;
  static constexpr int kBlocks = 4;
  static constexpr bool kNewestFirst = true;
  float total[M][4] = {};
  int32_t queries[Suffixes];
  unsigned open = (1u << Suffixes) - 1;  // suffixes that are not written

  __device__ SuffixSums(const WindowAttentionArgs& args, int64_t row) {
#pragma unroll
    for (int k = 0; k < Suffixes; ++k) queries[k] = args.suffixes[row / args.cache.kv_heads * Suffixes + k];
  }
  __device__ int skipped(int window) const {
    int longest = 1;
#pragma unroll
    for (int k = 0; k < Suffixes; ++k) longest = max(longest, queries[k]);
    return max(0, window - longest);
  }
  // Those of at most so many queries, which are all in.
  template <class Write>
  __device__ void close(int most, const Write& write) {
    unsigned closed = 0;
#pragma unroll
    for (int k = 0; k < Suffixes; ++k) closed |= unsigned{queries[k] <= most} << k;
    closed &= open;
    open &= ~closed;
#pragma unroll 1
    for (; closed != 0; closed &= closed - 1) write(__ffs(static_cast<int>(closed)) - 1, total);
  }
  // Unless one begins between them.
  template <class Write>
  __device__ bool takes_whole(const Newer& newer, const Write& write) {
    bool begins = false;
#pragma unroll
    for (int k = 0; k < Suffixes; ++k) begins |= queries[k] >= newer.of_last() && queries[k] < newer.of_first;
    if (!begins) close(newer.of_last() - 1, write);
    return !begins;
  }
  __device__ void add(const float (&p)[M][2][4]) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) total[m][e] = total[m][e] + p[m][0][e] + p[m][1][e];
    }
  }
  // Queries of no suffix may be no queries at all: nothing comes of them.
  template <class Write>
  __device__ void split(const Newer& newer, const float (&p)[M][2][4], const Write& write) {
#pragma unroll 1
    for (int count = newer.of_last(); count <= newer.of_first; ++count) {
      close(count - 1, write);
      if (open == 0) return;
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) total[m][e] += newer(i, e) == count ? p[m][i][e] : 0.0f;
        }
      }
    }
  }
  template <class Write>
  __device__ void finish(const Write& write) {
    close(INT_MAX, write);
  }
  __device__ static float combine(int, float a, float b) { return a + b; }
};

template <int M>
struct Extremes {
  static constexpr int kCount = WindowAttentionArgs::kExtremeCount;
  static constexpr int kBlocks = 3;  // that a multiprocessor should hold
  static constexpr bool kNewestFirst = false;
  float totals[kCount][M][4];

  __device__ Extremes(const WindowAttentionArgs&, int64_t) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int i = 0; i < 4 * M; ++i) totals[k][i / 4][i % 4] = k == 1 ? kInfinity : 0;
    }
  }
  __device__ static int skipped(int) { return 0; }
  // Unless some are beyond the window.
  template <class Write>
  __device__ static bool takes_whole(const Newer& newer, const Write&) {
    return newer.of_last() > 0;
  }
  __device__ void add(const float (&p)[M][2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) add(p, i, e);
    }
  }
  template <class Write>
  __device__ void split(const Newer& newer, const float (&p)[M][2][4], const Write&) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (newer(i, e) > 0) add(p, i, e);
      }
    }
  }
  template <class Write>
  __device__ void finish(const Write& write) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) write(k, totals[k]);
  }
  __device__ static float combine(int k, float a, float b) {
    return k == 0 ? fmaxf(a, b) : k == 1 ? fminf(a, b) : a + b;
  }

 private:
  __device__ void add(const float (&p)[M][2][4], int i, int e) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) totals[k][m][e] = combine(k, totals[k][m][e], p[m][i][e]);
    }
  }
};

}  // namespace kv::cuda
