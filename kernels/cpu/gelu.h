#pragma once

#include <cmath>

#include "kernels/cpu/exp.h"

namespace kv::cpu {

// The standard normal distribution at a, of which GELU by erf and its slope are made.
struct Normal {
  float below;    // Φ(a)
  float density;  // φ(a)
};

// Within a few ulp, Φ far below 0, too: from −13.2 on both are 0. Branch-free, so loops over it vectorise, which makes
// it many times as fast as std::erf; the exponential serves both.
inline Normal normal_at(float a) {
  const float size = std::abs(a);
  const float t = 1.0f / (1.0f + 0.35f * size);
  // Minimax of Φ(−a) / (e^(−a²/2) t) on 0 <= a <= 14: off by 3.2e-8.
  float p = -0.0291458878f;
  p = p * t + 0.1439714679f;
  p = p * t - 0.2557138332f;
  p = p * t + 0.1591737405f;
  p = p * t - 0.0231095868f;
  p = p * t + 0.1055079150f;
  p = p * t + 0.1198328865f;
  p = p * t + 0.1398618675f;
  p = p * t + 0.1396214044f;
  const float e = fast_exp(-0.5f * a * a);
  const float tail = p * t * e;
  return {a < 0.0f ? tail : 1.0f - tail, 0.398942280f * e};
}

inline float gelu(float a) { return a * normal_at(a).below; }
inline float gelu_slope(float a, const Normal& normal) { return normal.below + a * normal.density; }

}  // namespace kv::cpu
