#include "kernels/layer_mean.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

std::vector<int32_t> positions_of(const PagedView& cache, int64_t row) {
  std::vector<int32_t> positions(static_cast<size_t>(cache.lengths[row]));
  gather_positions(cache, row, 0, cache.lengths[row], positions.data());
  return positions;
}

// Adds what `other` has to the tokens that both hold; positions ascend in both.
void add_row(const LayerMeanArgs& args, std::span<const int32_t> positions, std::span<const int32_t> theirs,
             int64_t other, float* sums) {
  const float* input = args.input.row(other * args.group);
  size_t j = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    while (j < theirs.size() && theirs[j] < positions[i]) ++j;
    if (j == theirs.size()) return;
    if (theirs[j] != positions[i]) continue;
    for (int g = 0; g < args.group; ++g) sums[i] += input[g * args.input.pitch + static_cast<int64_t>(j)];
  }
}

}  // namespace

void layer_mean(const LayerMeanArgs& args) {
  const int64_t heads = args.cache.kv_heads;
  const auto count = static_cast<float>(heads * args.group);
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    const std::vector<int32_t> positions = positions_of(args.cache, row);
    float* output = args.output.row(row);
    std::fill_n(output, positions.size(), 0.0f);
    const int64_t first = row / heads * heads;
    for (int64_t other = first; other < first + heads; ++other) {
      add_row(args, positions, other == row ? positions : positions_of(args.cache, other), other, output);
    }
    for (size_t i = 0; i < positions.size(); ++i) output[i] /= count;
  });
}

}  // namespace kv::cpu
