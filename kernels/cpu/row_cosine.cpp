#include "kernels/row_cosine.h"

#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

void row_cosine(const RowCosineArgs& args) {
  const float* all_a = args.a.as<float>();
  const float* all_b = args.b.as<float>();
  parallel_blocks(args.rows, 64, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      const float* a = all_a + row * args.width;
      const float* b = all_b + row * args.width;
      const double norms = std::sqrt(dot<double>(a, a, args.width)) * std::sqrt(dot<double>(b, b, args.width));
      args.cosine[row] = norms > 0 ? static_cast<float>(dot<double>(a, b, args.width) / norms) : 0.0f;
    }
  });
}

}  // namespace kv::cpu
