#pragma once

#include <cstdint>

// Products of f32 by tensor cores: mma.sync m16n8k8 over tf32 (sm_80 and later), which has f32's range and the upper 11
// bits; the others it does not read. Two of them hold 22 of f32's 24 bits, and of two such numbers three products all
// but what is below those.
//
// left[16, 8]: thread `lane` holds rows lane / 4 (values 0, 2) and lane / 4 + 8 (1, 3), columns lane % 4 (0, 1) and
// lane % 4 + 4 (2, 3). right[8, 8]: rows lane % 4 and lane % 4 + 4, column lane / 4. Sums lie as those of mma.cuh.

namespace kv::cuda {

// x in two halves, each of N values.
template <int N>
struct Halves {
  uint32_t upper[N], lower[N];

  __device__ __forceinline__ void set(int i, float x) {
    upper[i] = __float_as_uint(x) & 0xffffe000;
    lower[i] = __float_as_uint(x - __uint_as_float(upper[i]));
  }
};

__device__ __forceinline__ void multiply_add_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// sums += left · right, the smallest products first.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const Halves<4>& left, const Halves<2>& right) {
  multiply_add_tf32(sums, left.lower, right.upper);
  multiply_add_tf32(sums, left.upper, right.lower);
  multiply_add_tf32(sums, left.upper, right.upper);
}

}  // namespace kv::cuda
