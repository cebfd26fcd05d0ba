#include "kernels/rms_norm.h"

#include <algorithm>

#include "kernels/cpu/norm_row.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// About 16k elements a task.
int64_t rows_a_task(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)); }

}  // namespace

void rms_norm(const RmsNormArgs& args) {
  const auto* input = args.input.as<float>();
  const auto* weight = args.weight.as<float>();
  auto* output = args.output.as<float>();
  const int64_t width = args.width;
  parallel_blocks(args.rows, rows_a_task(width), [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      norm_row(input + r * width, weight, width, args.epsilon, output + r * width);
    }
  });
}

void rms_norm_backward(const RmsNormBackwardArgs& args) {
  const auto* output_gradient = args.output_gradient.as<float>();
  const auto* input = args.input.as<float>();
  const auto* weight = args.weight.as<float>();
  const auto* addend = args.addend.as<float>();
  auto* input_gradient = args.input_gradient.as<float>();
  const int64_t width = args.width;
  parallel_blocks(args.rows, rows_a_task(width), [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      const float* dy = output_gradient + r * width;
      const float* x = input + r * width;
      float* dx = input_gradient + r * width;
      const float scale = inverse_rms(x, width, args.epsilon);
      const float along = sum_of<float>(width, [=](int64_t i) { return dy[i] * weight[i] * x[i]; });
      const float pull = scale * scale * scale * (along / static_cast<float>(width));
      const float* more = addend ? addend + r * width : nullptr;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        dx[i] = scale * (dy[i] * weight[i]) - pull * x[i] + (more ? more[i] : 0.0f);
      }
    }
  });
}

}  // namespace kv::cpu
