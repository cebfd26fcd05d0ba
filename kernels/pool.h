#pragma once

#include <cstdint>

#include "kernels/slots.h"

namespace kv {

// One-dimensional pooling with stride 1 over slots [0, lengths[v / vectors_per_row] − drop_newest), kernel odd.
// max: pads with −inf. average: pads with zeros and always divides by `kernel` (edges are biased down), as torch does.
// `output` may not alias `input`.
struct PoolArgs {
  enum class Kind : uint8_t { kMax, kAverage };
  Kind kind = Kind::kMax;
  int kernel = 7;
  Slots<const float> input;  // rows · vectors_per_row of them
  Slots<float> output;       // rows · vectors_per_row of them
  const int32_t* lengths = nullptr;
  int64_t rows = 0;
  int vectors_per_row = 1;
  int drop_newest = 0;
};

// output[row, slot] = mean over g of input[row, g, slot], slots [0, lengths[row] − drop_newest).
struct GroupMeanArgs {
  Slots<const float> input;  // rows · group of them
  Slots<float> output;       // may alias input only when group is 1
  const int32_t* lengths = nullptr;
  int64_t rows = 0;
  int group = 1;
  int drop_newest = 0;
};

namespace cpu {
void pool(const PoolArgs& args);
void group_mean(const GroupMeanArgs& args);
}  // namespace cpu
namespace cuda {
void pool(const PoolArgs& args);
void group_mean(const GroupMeanArgs& args);
}  // namespace cuda

}  // namespace kv
