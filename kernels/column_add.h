#pragma once

#include "kernels/paged.h"

namespace kv {

// columns[row, slot, first + g] += addend[row, g, slot] for g < count and the rows whose sequence has a segment with
// count > 0. How H2O's accumulators grow by each block's column sums (policies.md 2.2 B).
struct ColumnAddArgs {
  PagedView cache;
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  const float* addend = nullptr;  // [rows, count, pitch]
  int64_t pitch = 0;
  int first = 0;
  int count = 0;
  float* pool_columns = nullptr;
};

// scores[row, slot] = mean over g of columns[row, slot, first + g].
struct ColumnMeanArgs {
  PagedView cache;
  int first = 0;
  int count = 0;
  float* scores = nullptr;  // [rows, pitch]
  int64_t pitch = 0;
};

namespace cpu {
void column_add(const ColumnAddArgs& args);
void column_mean(const ColumnMeanArgs& args);
}  // namespace cpu
namespace cuda {
void column_add(const ColumnAddArgs& args);
void column_mean(const ColumnMeanArgs& args);
}  // namespace cuda

}  // namespace kv
