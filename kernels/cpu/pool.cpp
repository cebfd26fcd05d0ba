#include "kernels/pool.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// output[j] = combine(output[j], input[j + offset]) wherever both exist: one shifted pass for each tap of the window
// vectorises, a walk over windows does not.
template <class Combine>
void add_tap(const float* input, float* output, int64_t count, int64_t offset, const Combine& combine) {
  const int64_t end = std::min(count, count - offset);
#pragma omp simd
  for (int64_t j = std::max<int64_t>(0, -offset); j < end; ++j) output[j] = combine(output[j], input[j + offset]);
}

void pool_vector(const PoolArgs& args, const float* input, float* output, int64_t count) {
  if (count <= 0) return;
  const int64_t half = args.kernel / 2;
  if (args.kind == PoolArgs::Kind::kMax) {
    std::copy_n(input, count, output);
    for (int64_t offset = -half; offset <= half; ++offset) {
      add_tap(input, output, count, offset, [](float a, float b) { return a > b ? a : b; });
    }
    return;
  }
  std::fill_n(output, count, 0.0f);
  for (int64_t offset = -half; offset <= half; ++offset) {
    add_tap(input, output, count, offset, [](float a, float b) { return a + b; });
  }
  const float kernel = static_cast<float>(args.kernel);
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) output[j] /= kernel;
}

}  // namespace

void pool(const PoolArgs& args) {
  KV_CHECK(args.kernel > 0 && args.kernel % 2 == 1);
  parallel_for(args.rows * args.vectors_per_row, [&](int64_t vector) {
    const int64_t count = args.lengths[vector / args.vectors_per_row] - args.drop_newest;
    pool_vector(args, args.input.row(vector), args.output.row(vector), count);
  });
}

void group_mean(const GroupMeanArgs& args) {
  const float group = static_cast<float>(args.group);
  parallel_for(args.rows, [&](int64_t row) {
    const float* input = args.input.row(row * args.group);
    float* output = args.output.row(row);
    const int64_t count = args.lengths[row] - args.drop_newest;
#pragma omp simd
    for (int64_t slot = 0; slot < count; ++slot) {
      float sum = 0;
      for (int g = 0; g < args.group; ++g) sum += input[g * args.input.pitch + slot];
      output[slot] = sum / group;
    }
  });
}

}  // namespace kv::cpu
