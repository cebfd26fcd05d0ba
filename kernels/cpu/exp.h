#pragma once

#include <bit>
#include <cstdint>

namespace kv::cpu {

// e^x for x <= 88, within 2 ulp; 0 below −87.3 (where f32 would be subnormal), NaN stays NaN. Branch-free, so loops
// over it vectorise.
inline float fast_exp(float x) {
  constexpr float kLowest = -87.3f;
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, left in the low mantissa bits
  const float clamped = x < kLowest ? kLowest : x;
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts (Cody–Waite): n times the first is exact.
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  // Minimax of e^r on |r| <= ln 2 / 2 (Cephes expf).
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const float scale = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + (127u << 23));
  return x < kLowest ? 0.0f : p * scale;
}

// x[i] = e^(x[i] − shift) in place; returns the sum. The order of the sum depends on n alone: 32 interleaved partial
// sums, then the tail, then the partial sums in order.
inline float exp_row(float* x, int64_t n, float shift) {
  constexpr int kLanes = 32;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int lane = 0; lane < kLanes; ++lane) {
      const float e = fast_exp(x[i + lane] - shift);
      x[i + lane] = e;
      lanes[lane] += e;
    }
  }
  float sum = 0;
  for (; i < n; ++i) {
    x[i] = fast_exp(x[i] - shift);
    sum += x[i];
  }
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace kv::cpu
