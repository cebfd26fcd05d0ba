#pragma once

#include "kernels/element.h"

namespace kv {

// cosine[r] = a_r·b_r / (‖a_r‖‖b_r‖), accumulated in f64; 0 where either vector is zero.
struct RowCosineArgs {
  ConstRef a;               // [rows, width]
  ConstRef b;               // [rows, width]
  float* cosine = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t width = 0;
};

namespace cpu {
void row_cosine(const RowCosineArgs& args);
}
namespace cuda {
void row_cosine(const RowCosineArgs& args);
}

}  // namespace kv
