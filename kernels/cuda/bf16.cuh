#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/element.h"

// kernels/half.h's conversions of bf16 as the card's instructions do them, one or two values at a time. Nothing else in
// kernels/cuda rounds, but cuBLASLt, what it writes. The same bits come out, but that every NaN becomes 0x7fff.

namespace kv {

template <>
struct DTypeOf<__nv_bfloat16> {
  static constexpr DType value = DType::kBF16;
};

}  // namespace kv

namespace kv::cuda {

using bf16 = __nv_bfloat16;

__device__ inline bf16 to_bf16(float value) { return __float2bfloat16_rn(value); }
__device__ inline float to_f32(bf16 value) { return __bfloat162float(value); }

// Two neighbouring values, the first in the low half.
__device__ inline uint32_t to_bf16_pair(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(both);
}
__device__ inline float2 to_f32_pair(uint32_t both) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(both));
}

}  // namespace kv::cuda
