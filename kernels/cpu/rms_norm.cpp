#include "kernels/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

void rms_norm(const RmsNormArgs& args) {
  const auto* input = args.input.as<float>();
  const auto* weight = args.weight.as<float>();
  auto* output = args.output.as<float>();
  const int64_t width = args.width;
  // About 16k elements a task.
  const int64_t block = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
  parallel_blocks(args.rows, block, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      const float* x = input + r * width;
      float* y = output + r * width;
      const float scale = 1.0f / std::sqrt(dot(x, x, width) / static_cast<float>(width) + args.epsilon);
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) y[i] = x[i] * scale * weight[i];
    }
  });
}

}  // namespace kv::cpu
