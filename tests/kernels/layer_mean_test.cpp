#include "kernels/layer_mean.h"

#include "tests/ref/layer_mean.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, LayerMean);

std::vector<float> layer_mean(Backend& backend, const ref::PagedCache& cache, const std::vector<float>& input,
                              int group, int64_t pitch, const std::vector<uint8_t>& due = {}) {
  Tensor device = ref::upload_array(backend, input);
  Tensor output(backend, DType::kF32, cache.rows().rows() * pitch), rows_due;
  if (!due.empty()) rows_due = ref::upload_array(backend, due);
  backend.layer_mean({.cache = cache.view(),
                      .input = device.slots<float>(pitch),
                      .group = group,
                      .rows_due = due.empty() ? nullptr : ref::data_of<uint8_t>(rows_due),
                      .output = output.slots<float>(pitch)});
  backend.synchronize();
  return ref::download_array<float>(output);
}

// Two heads of two query heads. The first holds tokens 0 2 5, the second 2 3: token 2 has what both pay it, the others
// what one does.
TEST_P(LayerMean, AddsUpWhatHeadsHaveForTheSameToken) {
  KV_BACKEND_OR_SKIP(backend);
  ref::CacheRows rows = ref::random_rows({3, 2}, 2, 16, 1);
  rows.positions = {{0, 2, 5}, {2, 3}};
  const ref::PagedCache cache(*backend, rows);
  const std::vector<float> got = layer_mean(*backend, cache,
                                            {1, 2, 3, -1,   // row 0, query head 0
                                             4, 8, 16, -1,  // … 1
                                             32, 64, -1, -1, 128, 256, -1, -1},
                                            2, 4);
  EXPECT_EQ(ref::slice(got, 0, 3), (std::vector<float>{5 / 4.0F, (10 + 160) / 4.0F, 19 / 4.0F}));
  ref::expect_untouched(got, 3, 4);
  EXPECT_EQ(ref::slice(got, 4, 2), (std::vector<float>{(10 + 160) / 4.0F, 320 / 4.0F}));
  ref::expect_untouched(got, 6, 8);
}

TEST_P(LayerMean, LeavesRowsThatAreNotDue) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache cache(*backend, ref::random_rows({1, 1, 1, 1}, 2, 16, 1));
  const std::vector<float> got = layer_mean(*backend, cache, {1, 2, 3, 4}, 1, 1, {0, 0, 1, 1});
  ref::expect_untouched(got, 0, 2);
  EXPECT_EQ(ref::slice(got, 2, 2), (std::vector<float>{3.5F, 3.5F}));
}

// Every second sequence keeps the same tokens in every head; of the others each head lacks tokens of its own. Lengths
// around a page's 16 entries and an empty row.
TEST_P(LayerMean, AgreesWithTheDefinition) {
  KV_BACKEND_OR_SKIP(backend);
  for (const auto& [kv_heads, group] : {std::pair{1, 1}, {2, 4}, {3, 1}, {8, 2}}) {
    std::vector<int32_t> lengths;
    for (int row = 0; row < 4 * kv_heads; ++row)
      lengths.push_back(row / kv_heads % 2 == 0 ? 300 : (row * 47 + 17) % 290);
    lengths.back() = 0;
    ref::CacheRows rows = ref::random_rows(lengths, kv_heads, 16, 1);
    for (size_t row = 0; row < rows.positions.size(); ++row) {
      if (static_cast<int>(row) / kv_heads % 2 == 0) continue;
      const auto step = static_cast<int32_t>(row % 3 + 1);
      for (int32_t& position : rows.positions[row]) position = position * step + static_cast<int32_t>(row % 5);
    }
    const ref::PagedCache cache(*backend, rows);
    const int64_t pitch = 303;
    const std::vector<float> input = ref::random_values(lengths.size() * static_cast<size_t>(group * pitch), 3);
    const std::vector<float> got = layer_mean(*backend, cache, input, group, pitch);
    const auto want = ref::layer_mean(cache.rows(), input, group, pitch);
    for (int64_t row = 0; row < rows.rows(); ++row) {  // rows of the same tokens have the same bits
      const int64_t first = row / kv_heads * kv_heads;
      if (row / kv_heads % 2 != 0 || row == first) continue;
      EXPECT_EQ(ref::slice(got, row * pitch, rows.length(row)), ref::slice(got, first * pitch, rows.length(first)));
    }
    for (int64_t row = 0; row < rows.rows(); ++row) {
      // A sum of that many values below one, divided.
      ref::expect_close(ref::slice(got, row * pitch, rows.length(row)), want[static_cast<size_t>(row)],
                        {.roundings = static_cast<double>(kv_heads * group + 1)});
      ref::expect_untouched(got, row * pitch + rows.length(row), (row + 1) * pitch);
    }
  }
}

}  // namespace
}  // namespace kv
