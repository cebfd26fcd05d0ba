#pragma once

#include <cuda.h>

#include "kernels/cuda/mma.cuh"

// What only Hopper has: matrix products by a whole warpgroup (wgmma, operands in shared memory), copies by the tensor
// memory accelerator (TMA), barriers in shared memory that count bytes, registers moved between warpgroups.
//
// A tile in shared memory is made of *panels*: [rows][64 values], a row is 128 bytes, and its 16-byte pieces are
// permuted by the row's last three bits (the 128-byte swizzle that TMA writes and wgmma reads). Panels begin at
// multiples of 1024 bytes. A tile of 128 columns is two panels, one after the other.
//
// Only sm_90a code may name these instructions. A kernel that uses them does so under `if constexpr (kHopperCode)`: the
// PTX for other cards leaves it empty, and the host launches it on compute capability 9.0 only.

namespace kv::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHopperCode = true;
#else
inline constexpr bool kHopperCode = false;
#endif

inline constexpr int kWarpgroup = 128;
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelAlignment = 1024;
template <int Rows>
inline constexpr int kPanelBytes = 128 * (Rows);

// A [rows, columns] matrix as TMA sees it, read in boxes of box_rows × 64 columns. The number of rows is left open: the
// caller asks only for rows that exist, or for negative ones, which are zero.
CUtensorMap tensor_map(const bf16* data, int64_t columns, int box_rows);

// ---- Barriers -------------------------------------------------------------------------------------------------------

// A phase ends when all arrivals and all announced bytes are there. The n-th phase is awaited with parity n % 2.
struct Barrier {
  uint64_t state;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(this)), "r"(arrivals));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(this)) : "memory");
  }
  __device__ void arrive_expecting(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  __device__ void wait(uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                   : "=r"(done)
                   : "r"(shared_address(this)), "r"(parity)
                   : "memory");
    }
  }
};

// After Barrier::init and before the __syncthreads that lets others use the barriers.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

// Makes this thread's writes to shared memory visible to wgmma and TMA, once it has synchronised with their issuer.
__device__ inline void publish_to_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// __syncthreads among `threads` threads. Barriers 1 to 15; 0 is __syncthreads itself.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Every warp of a warpgroup calls these. What one warpgroup gives up, others may claim: all together no more than the
// block began with, or they wait for ever.
template <int Registers>
__device__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Registers));
}
template <int Registers>
__device__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Registers));
}

// ---- Copies ---------------------------------------------------------------------------------------------------------

// Starts copying the box at (row, column) into a panel; its bytes count towards the barrier's phase.
__device__ inline void copy_box(void* panel, const CUtensorMap& map, int column, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::"r"(
          shared_address(panel)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row)
      : "memory");
}

// The first place for a panel in a block's shared memory, of which kPanelAlignment bytes may be lost.
__device__ inline unsigned char* align_panels(unsigned char* memory) {
  return memory + (kPanelAlignment - shared_address(memory) % kPanelAlignment) % kPanelAlignment;
}

// Place of the 16-byte piece `piece` (0 to 7) of a row in a panel.
__device__ inline void* panel_piece(void* panel, int row, int piece) {
  return static_cast<unsigned char*>(panel) + row * 128 + ((piece ^ (row & 7)) * 16);
}

// Four 8 × 8 matrices of bf16 into shared memory: lane l says where row l % 8 of matrix l / 8 goes, 16 bytes of it, and
// has the pair of row l / 4 at column l % 4 · 2 of each.
__device__ inline void store_matrices(void* row, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_address(row)),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

// Adds to four numbers in global memory that lie together, each by itself, in no order.
__device__ inline void add_four(float* to, float4 x) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w)
               : "memory");
}

// ---- Products -------------------------------------------------------------------------------------------------------
//
// sums[64, N] += left[64, 16] · right[16, N] by 128 threads. Of the sums thread `t` holds, as mma.sync's m16n8 tiles
// do, rows t / 32 · 16 + t % 32 / 4 (+ 8 for e >= 2) and columns 8n + t % 4 · 2 + e % 2 in sums[4n + e]. Products are
// asynchronous: fence, products, commit, and wait before sums or registers on the left are touched again.

// What wgmma needs to know about an operand in shared memory: address, strides, swizzle, all in units of 16 bytes.
using Operand = uint64_t;

// Rows of panels, summed over columns (the left operand, or a right one that holds N rows). Begins at column 0;
// column_step() leads on.
__device__ inline Operand by_rows(const void* panel) {
  constexpr uint64_t kEightRows = 1024 / 16, kSwizzle128 = 1;
  return (shared_address(panel) & 0x3ffff) >> 4 | uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}
// From the operand at column 0 to the one at column 16 · k.
template <int Rows>
__device__ constexpr Operand column_step(int k) {
  return static_cast<Operand>(k / 4 * (kPanelBytes<Rows> / 16) + k % 4 * 2);
}

// Panels of `Rows` rows as an operand that is summed over rows: its columns come out, N of a right one, of a left one
// 64. Begins at row 0; row_step() leads on.
template <int Rows>
__device__ Operand by_columns(const void* panel) {
  constexpr uint64_t kEightRows = 1024 / 16, kNextPanel = kPanelBytes<Rows> / 16, kSwizzle128 = 1;
  return (shared_address(panel) & 0x3ffff) >> 4 | kNextPanel << 16 | kEightRows << 32 | kSwizzle128 << 62;
}
// From the operand at row 0 to the one at row 16 · k.
__device__ constexpr Operand row_step(int k) { return static_cast<Operand>(k * (16 * 128 / 16)); }

__device__ inline void product_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int Pending>
__device__ void product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(Pending) : "memory");
}

// Keeps the compiler from moving other uses of the registers across products in flight.
template <int N>
__device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N>
__device__ __forceinline__ void pin(uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// Has what the numbers come from computed before the next product_wait(). The compiler knows no reason to: it would
// wait first, and then compute with no products in flight. None of the numbers is negative; were one, `nowhere` in
// shared memory would be written.
template <int N>
__device__ __forceinline__ void compute_now(const float (&x)[N], uint32_t& nowhere) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) bits |= __float_as_uint(x[i]);
  asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %0, 0;\n@p st.volatile.shared.u32 [%1], %0;\n}\n" ::"r"(bits),
               "r"(shared_address(&nowhere))
               : "memory");
}

#define KV_SUMS_8(x, i)                                                                                       \
  "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), \
      "+f"(x[i + 7])
#define KV_SUMS_32(x, i) KV_SUMS_8(x, i), KV_SUMS_8(x, i + 8), KV_SUMS_8(x, i + 16), KV_SUMS_8(x, i + 24)

// N = 128: both operands by rows. `add` = 0 overwrites the sums.
__device__ __forceinline__ void product(float (&sums)[64], Operand left, Operand right, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
      "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
      "%62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;\n}\n"
      : KV_SUMS_32(sums, 0), KV_SUMS_32(sums, 32)
      : "l"(left), "l"(right), "r"(add));
}

// N = 64: both operands by rows. `add` = 0 overwrites the sums.
__device__ __forceinline__ void product(float (&sums)[32], Operand left, Operand right, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : KV_SUMS_32(sums, 0)
      : "l"(left), "l"(right), "r"(add));
}

// N = 128: left in registers, as mma.sync's m16k16 fragments; right by columns.
__device__ __forceinline__ void product_by_columns(float (&sums)[64], const uint32_t* left, Operand right, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
      "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
      "%62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : KV_SUMS_32(sums, 0), KV_SUMS_32(sums, 32)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(add));
}

// N = 64: left in registers, as mma.sync's m16k16 fragments; right by columns.
__device__ __forceinline__ void product_by_columns(float (&sums)[32], const uint32_t* left, Operand right, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : KV_SUMS_32(sums, 0)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(add));
}

// N = 64: both by columns, so the left one is 16 rows of 64 columns, too, and comes out turned.
__device__ __forceinline__ void product_of_columns(float (&sums)[32], Operand left, Operand right, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 1, 1;\n}\n"
      : KV_SUMS_32(sums, 0)
      : "l"(left), "l"(right), "r"(add));
}

#undef KV_SUMS_32
#undef KV_SUMS_8

// sums = left · rightᵀ over D columns, in panels of LeftRows (64 of which are read) and RightRows = N rows. Not
// committed.
template <int D, int LeftRows, int RightRows, int N>
__device__ __forceinline__ void multiply_rows(float (&sums)[N], const void* left, const void* right) {
  const Operand a = by_rows(left), b = by_rows(right);
  product_fence();
#pragma unroll
  for (int k = 0; k < D / 16; ++k) product(sums, a + column_step<LeftRows>(k), b + column_step<RightRows>(k), k > 0);
}

}  // namespace kv::cuda
