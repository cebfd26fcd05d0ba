#pragma once

#include <cstdint>

namespace kv {

// One-dimensional pooling with stride 1 over slots [0, lengths[v / vectors_per_row] − drop_newest), kernel odd.
// max: pads with −inf. average: pads with zeros and always divides by `kernel` (edges are biased down), as torch does.
// `output` may not alias `input`.
struct PoolArgs {
  enum class Kind : uint8_t { max, average };
  Kind kind = Kind::max;
  int kernel = 7;
  const float* input = nullptr;  // [rows, vectors_per_row, pitch]
  float* output = nullptr;       // [rows, vectors_per_row, pitch]
  const int32_t* lengths = nullptr;
  int64_t rows = 0;
  int vectors_per_row = 1;
  int drop_newest = 0;
  int64_t pitch = 0;
};

// output[row, slot] = mean over g of input[row, g, slot], slots [0, lengths[row] − drop_newest).
struct GroupMeanArgs {
  const float* input = nullptr;  // [rows, group, pitch]
  float* output = nullptr;       // [rows, pitch]; may alias input only when group is 1
  const int32_t* lengths = nullptr;
  int64_t rows = 0;
  int group = 1;
  int drop_newest = 0;
  int64_t pitch = 0;
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
