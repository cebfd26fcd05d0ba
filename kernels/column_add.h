#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// columns[row, slot, first + g] += addend[row, g, slot] for g < count and the rows whose sequence has a segment with
// count > 0 and is one of `sequences`. How H2O's accumulators grow by each block's column sums (001, App. E.2).
struct ColumnAddArgs {
  PagedView cache;
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  const uint8_t* sequences = nullptr;  // [sequences], 0 = skip; null = all
  Slots<const float> addend;           // rows · count of them
  int first = 0;
  int count = 0;
  float* pool_columns = nullptr;
};

// scores[row, slot] = mean over g of columns[row, slot, first + g].
struct ColumnMeanArgs {
  PagedView cache;
  int first = 0;
  int count = 0;
  Slots<float> scores;
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
