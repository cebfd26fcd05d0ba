#pragma once

#include "kernels/element.h"

namespace kv {

// How far each row of a lies from that of b, accumulated in f64:
//   distance[r] = ‖a_r − b_r‖², length[r] = ‖b_r‖².
struct RowDistanceArgs {
  ConstRef a;                 // [rows, width]
  ConstRef b;                 // [rows, width]
  float* distance = nullptr;  // [rows]
  float* length = nullptr;    // [rows]
  int64_t rows = 0;
  int64_t width = 0;
};

namespace cpu {
void row_distance(const RowDistanceArgs& args);
}
namespace cuda {
void row_distance(const RowDistanceArgs& args);
}

}  // namespace kv
