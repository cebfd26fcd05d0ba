#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

// Writes, for the due rows, inverse_norms[row, slot] = 1 / (‖k‖ + guard), 0 where that is not finite, and sums[row, :]
// = Σ_slot k · inverse_norm. All in double: the sum of thousands of keys is one in which opposite directions cancel.
struct UnitKeys {
  PagedView cache;
  const uint8_t* rows_due = nullptr;
  double guard = 0;
  double* inverse_norms = nullptr;  // [rows, max_length]
  double* sums = nullptr;           // [rows, head_dim]
};
void sum_unit_keys(const UnitKeys& args);

// Eight lanes share a key, so that a warp has four at a time: the norm's root and quotient, and the reductions, would
// otherwise cost more than reading. Lane e % 8 holds values [e · D / 8, (e + 1) · D / 8) of the key, zeros beyond dim.
template <int D>
struct SharedKey {
  static constexpr int kValues = D / 8;
  double x[kValues];

  __device__ void load(const bf16* key, int dim, int lane) {
    const int first = lane % 8 * kValues;
    if (dim == D) {
#pragma unroll
      for (int e = 0; e < kValues; e += 4) {
        const uint2 raw = *reinterpret_cast<const uint2*>(key + first + e);
        const float2 low = to_f32_pair(raw.x);
        const float2 high = to_f32_pair(raw.y);
        x[e] = low.x, x[e + 1] = low.y, x[e + 2] = high.x, x[e + 3] = high.y;
      }
    } else {
#pragma unroll
      for (int e = 0; e < kValues; ++e) x[e] = first + e < dim ? double{to_f32(key[first + e])} : 0.0;
    }
  }

  // All eight lanes get the product.
  __device__ double times(const double (&y)[kValues]) const {
    double sum = 0;
#pragma unroll
    for (int e = 0; e < kValues; ++e) sum += x[e] * y[e];
#pragma unroll
    for (int offset = 1; offset < 8; offset *= 2) sum += __shfl_xor_sync(kWarp, sum, offset);
    return sum;
  }
};

}  // namespace kv::cuda
