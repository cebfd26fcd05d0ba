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

  // c (+)= input[rows, in] · weightᵀ for the outputs [first_out, end_out); first_out is a multiple of kPanelWidth.
  // c points at the column of first_out.
  void multiply(const float* input, int64_t rows, int64_t first_out, int64_t end_out, float* c, int64_t ldc,
                Write write, float* scratch) const;

 private:
  // One cache line more than the depth, so that the rows of a copy do not fight for the same cache sets.
  static constexpr int64_t kCopyStride = kPanelDepth + 16;
  int64_t in_;
  Scratch panels_;  // [ceil(out / kPanelWidth), in, kPanelWidth]
};

}  // namespace kv::cpu
