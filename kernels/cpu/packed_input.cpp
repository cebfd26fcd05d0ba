#include "kernels/cpu/packed_input.h"

#include <algorithm>
#include <cstring>

namespace kv::cpu {

PackedInput::PackedInput(const float* input, int64_t rows, int64_t in)
    : in_(in), panels_(round_up(rows, kPanelWidth) * in) {
  parallel_blocks(rows, kPanelWidth, [&](int64_t first, int64_t end) {
    pack_transposed(input + first * in, end - first, in, in, panels_.data() + first * in);
  });
}

void PackedInput::multiply(const float* weight, int64_t outputs, int64_t first_row, int64_t end_row, float* c,
                           int64_t ldc, Write write, float* scratch, const float* next) const {
  // Equal parts: a short last one would pay for loading and storing c all the same.
  const int64_t parts = std::max<int64_t>(1, (in_ + kPanelDepth - 1) / kPanelDepth);
  const int64_t depth = (in_ + parts - 1) / parts;
  const int64_t panels = (end_row - first_row + kPanelWidth - 1) / kPanelWidth;
  const int64_t groups = (outputs + kPanelRows - 1) / kPanelRows;
  const int64_t ahead_step = next ? (outputs + groups * panels - 1) / (groups * panels) : 0;
  const float* ahead = next;
  for (int64_t i = 0; i == 0 || i < in_; i += depth) {
    const int64_t k = std::min(depth, in_ - i);
    for (int64_t o = 0; o < outputs; ++o) {
      std::memcpy(scratch + o * kCopyStride, weight + o * in_ + i, static_cast<size_t>(k) * sizeof(float));
    }
    for (int64_t row = first_row; row < end_row; row += kPanelWidth) {
      panel_product({.a = scratch,
                     .lda = kCopyStride,
                     .b = panels_.data() + row * in_ + i * kPanelWidth,
                     .k = k,
                     .c = c + (row - first_row),
                     .ldc = ldc,
                     .write = i == 0 ? write : Write::kAdd,
                     .ahead = ahead,
                     .ahead_step = ahead_step},
                    outputs);
      ahead += groups * k * ahead_step;
    }
  }
}

}  // namespace kv::cpu
