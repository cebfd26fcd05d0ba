#include "kernels/rms_norm.h"

#include <algorithm>

#include "kernels/cpu/norm_row.h"
#include "kernels/cpu/parallel.h"

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
      norm_row_backward(output_gradient + r * width, input + r * width, weight, addend ? addend + r * width : nullptr,
                        width, args.epsilon, input_gradient + r * width);
    }
  });
}

}  // namespace kv::cpu
