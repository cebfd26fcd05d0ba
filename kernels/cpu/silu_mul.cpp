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

void silu_mul_backward(const SiluMulBackwardArgs& args) {
  const auto* output_gradient = args.output_gradient.as<float>();
  const auto* gate = args.gate.as<float>();
  const auto* up = args.up.as<float>();
  auto* gate_gradient = args.gate_gradient.as<float>();
  auto* up_gradient = args.up_gradient.as<float>();
  parallel_blocks(args.count, 16384, [&](int64_t first, int64_t end) {
#pragma omp simd
    for (int64_t i = first; i < end; ++i) {
      const float x = gate[i];
      const float dy = output_gradient[i];
      const float e = fast_exp(-std::abs(x));
      const float above = (x < 0 ? e : 1.0f) / (1.0f + e);  // σ(x)
      const float below = (x < 0 ? 1.0f : e) / (1.0f + e);  // σ(−x), without the loss that 1 − σ(x) would have
      const float dgate = dy * up[i] * above * (1.0f + x * below);
      up_gradient[i] = dy * (x * above);
      gate_gradient[i] = dgate;
    }
  });
}

}  // namespace kv::cpu
