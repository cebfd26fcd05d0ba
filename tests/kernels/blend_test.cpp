#include "kernels/blend.h"

#include "tests/ref/blend.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Blend);

TEST_P(Blend, WeighsBothInputsAndLeavesTheNewestAlone) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<int32_t> lengths = {0, 1, 3, 16, 17, 33};
  const int64_t pitch = 40, rows = static_cast<int64_t>(lengths.size());
  const std::vector<float> a = ref::random_values(rows * pitch, 1), b = ref::random_values(rows * pitch, 2);
  Tensor device_a = ref::upload_array(*backend, a), device_b = ref::upload_array(*backend, b);
  Tensor device_lengths = ref::upload_array(*backend, lengths), output(*backend, DType::kF32, rows * pitch);
  backend->blend({.a = device_a.slots<float>(pitch),
                  .b = device_b.slots<float>(pitch),
                  .weight_a = 0.1f,
                  .weight_b = -0.9f,
                  .output = output.slots<float>(pitch),
                  .lengths = ref::data_of<int32_t>(device_lengths),
                  .rows = rows,
                  .drop_newest = 2});
  backend->synchronize();
  const std::vector<float> got = ref::download_array<float>(output);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = std::max(0, lengths[row] - 2);
    // Two products and a sum.
    ref::expect_close(ref::slice(got, row * pitch, count),
                      ref::blend(ref::slice(a, row * pitch, count), ref::slice(b, row * pitch, count), 0.1f, -0.9f),
                      {.roundings = 3});
    ref::expect_untouched(got, row * pitch + count, (row + 1) * pitch);
  }
}

TEST_P(Blend, OutputMayBeAnInput) {
  KV_BACKEND_OR_SKIP(backend);
  Tensor a = ref::upload_array<float>(*backend, {1, 2, 3}), b = ref::upload_array<float>(*backend, {10, 20, 30});
  Tensor lengths = ref::upload_array<int32_t>(*backend, {3});
  backend->blend({.a = a.slots<float>(3),
                  .b = b.slots<float>(3),
                  .weight_a = 2,
                  .weight_b = 1,
                  .output = a.slots<float>(3),
                  .lengths = ref::data_of<int32_t>(lengths),
                  .rows = 1});
  backend->synchronize();
  EXPECT_EQ(ref::download_array<float>(a), (std::vector<float>{12, 24, 36}));
}

}  // namespace
}  // namespace kv
