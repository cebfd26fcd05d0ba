#include "kernels/silu_mul.h"

#include <cmath>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void silu_mul(const SiluMulArgs& args) {
  const auto* gate = args.gate.as<float>();
  const auto* up = args.up.as<float>();
  auto* output = args.output.as<float>();
  parallel_blocks(args.count, 16384, [&](int64_t first, int64_t end) {
#pragma omp simd
    for (int64_t i = first; i < end; ++i) {
      const float x = gate[i];
      // e^−|x| cannot overflow: silu(x) = x · e^x / (1 + e^x) on the negative side.
      const float e = fast_exp(-std::abs(x));
      output[i] = x * (x < 0 ? e : 1.0f) / (1.0f + e) * up[i];
    }
  });
}

}  // namespace kv::cpu
