#pragma once

#include <type_traits>

#include "kernels/cuda/device.cuh"

// Tensor-core tiles: bf16 products with f32 sums by mma.sync m16n8k16 (sm_80 and later), operands in shared memory.
//
// In shared memory a tile is [rows, D], and begins at a multiple of 128 bytes. Each row's pieces of 16 bytes are
// permuted within lines of 128 bytes, so that those which one ldmatrix reads from eight rows lie in different banks.
// Padding the rows would do that, too, but then the lines that cp.async writes are not whole, and streaming from memory
// takes a tenth longer.
//
// An accumulator tile of 16 × 8: thread `lane` holds rows lane / 4 (values 0, 1) and lane / 4 + 8 (values 2, 3),
// columns lane % 4 · 2 and the next.

namespace kv::cuda {

// What the numbers of a row's pieces are XORed with.
template <int D>
__device__ constexpr int twist(int row) {
  constexpr unsigned kRowsALine = D < 64 ? 64 / D : 1, kPieces = D < 64 ? D / 8 : 8;
  return static_cast<int>(static_cast<unsigned>(row) / kRowsALine % kPieces);
}

// Where a tile has value d of a row.
template <int D>
__device__ constexpr int place(int row, int d) {
  return row * D + (static_cast<int>(static_cast<unsigned>(d) / 8) ^ twist<D>(row)) * 8 +
         static_cast<int>(static_cast<unsigned>(d) % 8);
}

__device__ inline uint32_t shared_address(const void* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

__device__ inline void load_matrices(uint32_t (&r)[4], const bf16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(from)));
}

__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const bf16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(from)));
}

__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(to)), "l"(from));
}
// The same of 4, 8 or 16 bytes, which lie at a multiple of their number.
template <int Bytes>
__device__ void copy_few_async(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(shared_address(to)), "l"(from), "n"(Bytes));
}
// Zeros, and nothing read, unless `there`.
__device__ inline void copy_or_zero(void* to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(present ? 16 : 0));
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::); }
template <int Pending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Pending) : "memory");
}

inline constexpr float kToLog2 = 1.4426950408889634f;  // e^x = 2^(x · kToLog2)

// 2^x; 0 for −inf. One instruction, off by two units in the last place.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Starts copying `count` rows into a tile: row r comes from source(r), a pointer to `dim` <= D values or null. What has
// no source is zero, because a poisoned value times a zero weight would still be NaN. `threads`: a multiple of a warp.
template <int D, class Source>
__device__ void stage_rows(bf16* tile, int count, int dim, int thread, int threads, const Source& source) {
  constexpr unsigned kPieces = D / 8;
  const unsigned rows_at_once = static_cast<unsigned>(threads) / kPieces;
  const auto first = static_cast<int>(static_cast<unsigned>(thread) % kPieces * 8);
  const auto nth = static_cast<int>(static_cast<unsigned>(thread) / kPieces % rows_at_once);
  if (dim % 8 == 0) {
#pragma unroll 8
    for (int from = 0; from < count; from += static_cast<int>(rows_at_once)) {
      const int row = from + nth;
      if (row >= count) break;
      const bf16* const values = source(row);
      copy_or_zero(tile + place<D>(row, first), values + first, values && first < dim);
    }
  } else {
#pragma unroll 1
    for (int row = nth; row < count; row += static_cast<int>(rows_at_once)) {
      const bf16* const values = source(row);
      bf16* const to = tile + place<D>(row, first);
#pragma unroll 1
      for (int e = 0; e < 8; ++e) to[e] = values && first + e < dim ? values[first + e] : to_bf16(0.0f);
    }
  }
}

// Where a lane's row of a fragment has a piece: the lane_row-th from first_row on, which is a multiple of 8.
template <int D>
__device__ const bf16* piece_of(const bf16* tile, int first_row, int lane_row, int piece) {
  return tile + (first_row + lane_row) * D + (piece ^ twist<D>(lane_row % 8)) * 8;
}

// Fragments of rows [first_row, first_row + 16) and columns [16·step, 16·step + 16) as the left operand.
template <int D>
__device__ void load_left(uint32_t (&a)[4], const bf16* tile, int first_row, int step, int lane) {
  load_matrices(a, piece_of<D>(tile, first_row, lane % 16, step * 2 + lane / 16));
}

// The same of rows [first_row, first_row + 16) as two right operands of products with the rows: b[0..1] serve rows 0-7,
// b[2..3] rows 8-15.
template <int D>
__device__ void load_right(uint32_t (&b)[4], const bf16* tile, int first_row, int step, int lane) {
  load_matrices(b, piece_of<D>(tile, first_row, lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
}

// Rows [first_row, first_row + 16) are summed over, columns [16·pair, 16·pair + 16) come out: b[0..1] and b[2..3].
template <int D>
__device__ void load_right_by_columns(uint32_t (&b)[4], const bf16* tile, int first_row, int pair, int lane) {
  load_matrices_transposed(b, piece_of<D>(tile, first_row, lane % 16, pair * 2 + lane / 16));
}

// The same rows and columns as the left operand, whose rows are the tile's columns.
template <int D>
__device__ void load_left_by_columns(uint32_t (&a)[4], const bf16* tile, int first_row, int pair, int lane) {
  load_matrices_transposed(a, piece_of<D>(tile, first_row, lane % 8 + lane / 16 * 8, pair * 2 + lane / 8 % 2));
}

// 16·M rows a warp, held in registers, against the 8·N rows of a tile: sums[m][n] = rows · tileᵀ.
template <int D, int M>
struct HeldRows {
  uint32_t a[M][D / 16][4];

  __device__ void load(const bf16* tile, int first_row, int lane) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int step = 0; step < D / 16; ++step) load_left<D>(a[m][step], tile, first_row + 16 * m, step, lane);
    }
  }

  // With rows [first, first + 16) of the tile only: fewer sums at a time, where registers are scarce.
  __device__ void times_sixteen(const bf16* tile, int first, int lane, float (&sums)[M][2][4]) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
    }
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      uint32_t b[4];
      load_right<D>(b, tile, first, step, lane);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add(sums[m][0], a[m][step], b[0], b[1]);
        multiply_add(sums[m][1], a[m][step], b[2], b[3]);
      }
    }
  }

  template <int N>
  __device__ void times(const bf16* tile, int lane, float (&sums)[M][N][4]) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < N; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
    }
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        load_right<D>(b, tile, n * 8, step, lane);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          multiply_add(sums[m][n], a[m][step], b[0], b[1]);
          multiply_add(sums[m][n + 1], a[m][step], b[2], b[3]);
        }
      }
    }
  }
};

// Statistics over queries keep keys in registers: a thread block of four warps owns kKeys keys and streams tiles of
// kQueries queries, so that a key's sum stays in one warp.
template <int D>
struct KeyTile {
  static constexpr int kM = D <= 128 ? 2 : 1;
  static constexpr int kKeys = 64 * kM;
  static constexpr int kQueries = 64;
  static constexpr int kThreads = 128;
};

// Calls with an integral constant: the smallest supported width that holds dim. Wider tiles are zero beyond dim.
template <class Call>
void with_width(int dim, const Call& call) {
  KV_CHECK(dim > 0 && dim <= 256);
  if (dim <= 32) return call(std::integral_constant<int, 32>());
  if (dim <= 64) return call(std::integral_constant<int, 64>());
  if (dim <= 128) return call(std::integral_constant<int, 128>());
  return call(std::integral_constant<int, 256>());
}

}  // namespace kv::cuda
