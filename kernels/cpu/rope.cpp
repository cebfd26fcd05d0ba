#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/norm_row.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// A token's turn.
struct Turn {
  const float* cosines;
  const float* sines;
  int64_t half;

  // `y` may be `x`.
  void operator()(const float* x, float* y) const {
#pragma omp simd
    for (int64_t d = 0; d < half; ++d) {
      const float a = x[d];
      const float b = x[d + half];
      y[d] = a * cosines[d] - b * sines[d];
      y[d + half] = b * cosines[d] + a * sines[d];
    }
  }
};

enum class Direction { kForward, kBackward };

// Calls visit(token, turn, room), room for a head's numbers. Back is the turn by −angle, whose sine is the other way
// round.
template <class Visit>
void for_each_token(const RopeAngles& angles, Direction direction, const Visit& visit) {
  const int64_t half = angles.head_dim / 2;
  const float factor = angles.attention_factor, sine_factor = direction == Direction::kBackward ? -factor : factor;
  parallel_blocks(angles.tokens, 64, [&](int64_t first, int64_t end) {
    std::vector<float> numbers(static_cast<size_t>(4 * half));
    float* cosines = numbers.data();
    float* sines = cosines + half;
    for (int64_t t = first; t < end; ++t) {
      for (int64_t d = 0; d < half; ++d) {
        const float angle = static_cast<float>(angles.positions[t]) * angles.inv_freq[d];
        cosines[d] = factor * std::cos(angle);
        sines[d] = sine_factor * std::sin(angle);
      }
      visit(t, Turn{cosines, sines, half}, sines + half);
    }
  });
}

void turn_heads(const RopeArgs& args, const RopeVectors& vectors, int64_t token, const Turn& turn) {
  const int64_t dim = args.angles.head_dim;
  for (int64_t head = 0; head < vectors.heads; ++head) {
    const int64_t at = (token * vectors.heads + head) * dim;
    const float* x = vectors.input.as<float>() + at;
    if (vectors.norm) {
      float* normed = vectors.normed.as<float>() + at;
      norm_row(x, vectors.norm.as<float>(), dim, args.norm_epsilon, normed);
      x = normed;
    }
    turn(x, vectors.output.as<float>() + at);
  }
}

void turn_heads_back(const RopeBackwardArgs& args, const RopeGradients& vectors, int64_t token, const Turn& turn,
                     float* turned) {
  const int64_t dim = args.angles.head_dim;
  for (int64_t head = 0; head < vectors.heads; ++head) {
    const int64_t at = (token * vectors.heads + head) * dim;
    turn(vectors.output_gradient.as<float>() + at, turned);
    if (vectors.addend) {
      const float* more = vectors.addend.as<float>() + at;
      for (int64_t i = 0; i < dim; ++i) turned[i] += more[i];
    }
    float* gradient = vectors.input_gradient.as<float>() + at;
    if (vectors.norm) {
      norm_row_backward(turned, vectors.input.as<float>() + at, vectors.norm.as<float>(), nullptr, dim,
                        args.norm_epsilon, gradient);
    } else {
      std::copy_n(turned, dim, gradient);
    }
  }
}

}  // namespace

void rope(const RopeArgs& args) {
  check_rope(args);
  for_each_token(args.angles, Direction::kForward, [&](int64_t token, const Turn& turn, float* /*room*/) {
    for (const RopeVectors& vectors : args.vectors) turn_heads(args, vectors, token, turn);
  });
}

void rope_backward(const RopeBackwardArgs& args) {
  check_rope(args);
  for_each_token(args.angles, Direction::kBackward, [&](int64_t token, const Turn& turn, float* room) {
    for (const RopeGradients& vectors : args.vectors) turn_heads_back(args, vectors, token, turn, room);
  });
}

}  // namespace kv::cpu
