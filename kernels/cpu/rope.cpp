#include "kernels/rope.h"

#include <cmath>
#include <vector>

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

}  // namespace

void rope(const RopeArgs& args) {
  const auto* input = args.input.as<float>();
  auto* output = args.output.as<float>();
  const int64_t dim = args.head_dim;
  const int64_t half = dim / 2;
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
      for (int64_t head = 0; head < args.heads; ++head) {
        const int64_t at = (t * args.heads + head) * dim;
        rotate(input + at, cosines, sines, half, output + at);
      }
    }
  });
}

}  // namespace kv::cpu
