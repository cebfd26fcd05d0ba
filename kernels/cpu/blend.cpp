#include "kernels/blend.h"

#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void blend(const BlendArgs& args) {
  parallel_for(args.rows, [&](int64_t row) {
    const float* a = args.a.row(row);
    const float* b = args.b.row(row);
    float* output = args.output.row(row);
    const int64_t count = args.lengths[row] - args.drop_newest;
    // Aliasing is element on element, which a simd loop allows.
#pragma omp simd
    for (int64_t slot = 0; slot < count; ++slot) output[slot] = args.weight_a * a[slot] + args.weight_b * b[slot];
  });
}

}  // namespace kv::cpu
