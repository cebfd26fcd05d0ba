#pragma once

#include <cstdint>
#include <limits>

namespace kv::cpu {

// Reductions whose order depends on the length alone: sixteen interleaved partial results, which the compiler turns
// into vectors without -ffast-math, then the tail, then the partial results in order. Acc is the type of the sums.
inline constexpr int kReduceLanes = 16;

template <class Acc, class Term>
Acc sum_of(int64_t count, const Term& term) {
  Acc lanes[kReduceLanes] = {};
  int64_t i = 0;
  for (; i + kReduceLanes <= count; i += kReduceLanes) {
#pragma omp simd
    for (int lane = 0; lane < kReduceLanes; ++lane) lanes[lane] += term(i + lane);
  }
  Acc sum = 0;
  for (; i < count; ++i) sum += term(i);
  for (const Acc lane : lanes) sum += lane;
  return sum;
}

template <class Acc = float>
Acc dot(const float* a, const float* b, int64_t count) {
  return sum_of<Acc>(count, [=](int64_t i) { return static_cast<Acc>(a[i]) * static_cast<Acc>(b[i]); });
}

// −inf where count is 0.
inline float largest(const float* values, int64_t count) {
  float lanes[kReduceLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + kReduceLanes <= count; i += kReduceLanes) {
#pragma omp simd
    for (int lane = 0; lane < kReduceLanes; ++lane) {
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    }
  }
  float result = lanes[0];
  for (; i < count; ++i) result = values[i] > result ? values[i] : result;
  for (const float lane : lanes) result = lane > result ? lane : result;
  return result;
}

}  // namespace kv::cpu
