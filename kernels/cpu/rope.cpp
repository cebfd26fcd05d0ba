#include "kernels/rope.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/norm_row.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

void rotate(const float* x, const float* cosines, const float* sines, int64_t half, float* y) {
#pragma omp simd
  for (int64_t d = 0; d < half; ++d) {
    const float a = x[d];
    const float b = x[d + half];
    y[d] = a * cosines[d] - b * sines[d];
    y[d + half] = b * cosines[d] + a * sines[d];
  }
}

// Of one token.
void turn_heads(const RopeArgs& args, const RopeVectors& vectors, int64_t token, const float* cosines,
                const float* sines) {
  const int64_t dim = args.head_dim;
  for (int64_t head = 0; head < vectors.heads; ++head) {
    const int64_t at = (token * vectors.heads + head) * dim;
    const float* x = vectors.input.as<float>() + at;
    if (vectors.norm) {
      float* normed = vectors.normed.as<float>() + at;
      norm_row(x, vectors.norm.as<float>(), dim, args.norm_epsilon, normed);
      x = normed;
    }
    rotate(x, cosines, sines, dim / 2, vectors.output.as<float>() + at);
  }
}

}  // namespace

void rope(const RopeArgs& args) {
  check_vectors(args);
  const int64_t half = args.head_dim / 2;
  // Back is the turn by −angle, whose sine is the other way round.
  const float sine_factor = args.direction == RopeDirection::kBackward ? -args.attention_factor : args.attention_factor;
  parallel_blocks(args.tokens, 64, [&](int64_t first, int64_t end) {
    std::vector<float> angles(static_cast<size_t>(2 * half));
    float* cosines = angles.data();
    float* sines = cosines + half;
    for (int64_t t = first; t < end; ++t) {
      for (int64_t d = 0; d < half; ++d) {
        const float angle = static_cast<float>(args.positions[t]) * args.inv_freq[d];
        cosines[d] = args.attention_factor * std::cos(angle);
        sines[d] = sine_factor * std::sin(angle);
      }
      for (const RopeVectors& vectors : args.vectors) turn_heads(args, vectors, t, cosines, sines);
    }
  });
}

}  // namespace kv::cpu
