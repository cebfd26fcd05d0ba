#include "kernels/hidden_distance.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

void hidden_distance(const HiddenDistanceArgs& args) {
  const auto* all_students = args.student.as<float>();
  const auto* all_teachers = args.teacher.as<float>();
  auto* gradients = args.gradient.as<float>();
  const int64_t width = args.width;
  parallel_blocks(args.tokens, 64, [&](int64_t first, int64_t end) {
    for (int64_t t = first; t < end; ++t) {
      const float* student = all_students + t * width;
      const float* teacher = all_teachers + t * width;
      float* gradient = gradients + t * width;
      const float weight = args.weights ? args.weights[t] : 1.0f;
      if (weight == 0) {
        args.loss[t] = 0;
        std::fill_n(gradient, width, 0.0f);
        continue;
      }
      const auto distance = sum_of<double>(width, [=](int64_t i) {
        const double difference = double{student[i]} - double{teacher[i]};
        return difference * difference;
      });
      args.loss[t] = static_cast<float>(distance / static_cast<double>(width));
      const auto pull = static_cast<float>(2.0 * args.scale * weight / static_cast<double>(width));
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) gradient[i] = pull * (student[i] - teacher[i]);
    }
  });
}

}  // namespace kv::cpu
