#pragma once

#include <cstdint>

#include "kernels/slots.h"

namespace kv {

// output[row, slot] = weight_a · a[row, slot] + weight_b · b[row, slot] for slots [0, lengths[row] − drop_newest).
// `output` may alias either input.
struct BlendArgs {
  Slots<const float> a;
  Slots<const float> b;
  float weight_a = 1;
  float weight_b = 1;
  Slots<float> output;
  const int32_t* lengths = nullptr;
  int64_t rows = 0;
  int drop_newest = 0;
};

namespace cpu {
void blend(const BlendArgs& args);
}
namespace cuda {
void blend(const BlendArgs& args);
}

}  // namespace kv
