#pragma once

#include "kernels/cpu/panel.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

// The rows of an input [rows, in] cut into panels of kPanelWidth rows, packed once and read by all tasks of an op. The
// few rows of a step are the panel and the weight streams past them, read once and in place: to pack the weight instead
// would write a copy of it at every step.
class PackedInput {
 public:
  PackedInput(const float* input, int64_t rows, int64_t in);

  // Floats of scratch that multiply() needs for this many outputs.
  static int64_t scratch_floats(int64_t outputs) { return outputs * kCopyStride; }

  // c[outputs, end_row − first_row] (+)= weight[outputs, in] · input[first_row.., in]ᵀ; first_row is a multiple of
  // kPanelWidth, and c is written to the full width of the last panel. That block of c should fit the L2 cache: it is
  // added to once every kPanelDepth inputs.
  // next[outputs, in] is the block of the weight that this thread will want next, or null: it is fetched meanwhile.
  void multiply(const float* weight, int64_t outputs, int64_t first_row, int64_t end_row, float* c, int64_t ldc,
                Write write, float* scratch, const float* next = nullptr) const;

 private:
  // One cache line more than the depth, so that the rows of a copy do not fight for the same cache sets.
  static constexpr int64_t kCopyStride = kPanelDepth + 16;
  int64_t in_;
  Scratch panels_;  // [ceil(rows / kPanelWidth), in, kPanelWidth]
};

}  // namespace kv::cpu
