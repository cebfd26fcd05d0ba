#include "kernels/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>

namespace kv::cpu {

PackedWeight::PackedWeight(const float* weight, int64_t out, int64_t in)
    : in_(in), panels_(round_up(out, kPanelWidth) * in) {
  parallel_blocks(out, 4 * kPanelWidth, [&](int64_t first, int64_t end) {
    for (int64_t o = first; o < end; o += kPanelWidth) {
      pack_transposed(weight + o * in, std::min<int64_t>(kPanelWidth, end - o), in, in, panels_.data() + o * in);
    }
  });
}

void PackedWeight::multiply(const float* input, int64_t rows, int64_t first_out, int64_t end_out, float* c, int64_t ldc,
                            Write write, float* scratch) const {
  // Equal parts: a short last one would pay for loading and storing c all the same.
  const int64_t parts = std::max<int64_t>(1, (in_ + kPanelDepth - 1) / kPanelDepth);
  const int64_t depth = (in_ + parts - 1) / parts;
  for (int64_t i = 0; i == 0 || i < in_; i += depth) {
    const int64_t k = std::min(depth, in_ - i);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(scratch + r * kCopyStride, input + r * in_ + i, static_cast<size_t>(k) * sizeof(float));
    }
    for (int64_t o = first_out; o < end_out; o += kPanelWidth) {
      panel_product({.a = scratch,
                     .lda = kCopyStride,
                     .b = panels_.data() + o * in_ + i * kPanelWidth,
                     .k = k,
                     .c = c + (o - first_out),
                     .ldc = ldc,
                     .write = i == 0 ? write : Write::kAdd},
                    rows, std::min<int64_t>(kPanelWidth, end_out - o));
    }
  }
}

}  // namespace kv::cpu
