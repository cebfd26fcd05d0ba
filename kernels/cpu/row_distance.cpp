#include "kernels/row_distance.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

void row_distance(const RowDistanceArgs& args) {
  const float* all_a = args.a.as<float>();
  const float* all_b = args.b.as<float>();
  parallel_blocks(args.rows, 64, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      const float* a = all_a + row * args.width;
      const float* b = all_b + row * args.width;
      double distance = 0;
#pragma omp simd reduction(+ : distance)
      for (int64_t i = 0; i < args.width; ++i) {
        const double difference = static_cast<double>(a[i]) - b[i];
        distance += difference * difference;
      }
      args.distance[row] = static_cast<float>(distance);
      args.length[row] = static_cast<float>(dot<double>(b, b, args.width));
    }
  });
}

}  // namespace kv::cpu
