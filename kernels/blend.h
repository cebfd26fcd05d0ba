#pragma once

#include <cstdint>

namespace kv {

// output[row, slot] = weight_a · a[row, slot] + weight_b · b[row, slot] for slots [0, lengths[row] − drop_newest).
// `output` may alias either input.
struct BlendArgs {
  const float* a = nullptr;  // [rows, pitch]
  const float* b = nullptr;  // [rows, pitch]
  float weight_a = 1;
  float weight_b = 1;
  float* output = nullptr;
  const int32_t* lengths = nullptr;
  int64_t rows = 0;
  int drop_newest = 0;
  int64_t pitch = 0;
};

namespace cpu {
void blend(const BlendArgs& args);
}
namespace cuda {
void blend(const BlendArgs& args);
}

}  // namespace kv
