#pragma once

#include "kernels/cpu/panel.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

// A weight [out, in] cut into panels of kPanelWidth outputs, packed once and read by all tasks of an op.
class PackedWeight {
 public:
  PackedWeight(const float* weight, int64_t out, int64_t in);

  // Floats of scratch that multiply() needs for this many rows.
  static int64_t scratch_floats(int64_t rows) { return rows * kCopyStride; }

  // c[rows, end_out − first_out] (+)= input[rows, in] · weightᵀ for those outputs; first_out is a multiple of
  // kPanelWidth. That block of c should fit the L2 cache: it is added to once every kPanelDepth inputs.
  void multiply(const float* input, int64_t rows, int64_t first_out, int64_t end_out, float* c, int64_t ldc,
                Write write, float* scratch) const;

 private:
  // One cache line more than the depth, so that the rows of a copy do not fight for the same cache sets.
  static constexpr int64_t kCopyStride = kPanelDepth + 16;
  int64_t in_;
  Scratch panels_;  // [ceil(out / kPanelWidth), in, kPanelWidth]
};

}  // namespace kv::cpu
