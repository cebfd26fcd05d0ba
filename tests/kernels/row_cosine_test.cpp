#include "kernels/row_cosine.h"

#include "tests/ref/row_cosine.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RowCosine);

std::vector<float> row_cosine(Backend& backend, const std::vector<float>& a, const std::vector<float>& b,
                              int64_t width) {
  const int64_t rows = static_cast<int64_t>(a.size()) / width;
  Tensor device_a = ref::upload_activations(backend, a), device_b = ref::upload_activations(backend, b);
  Tensor cosine(backend, DType::kF32, rows);
  backend.row_cosine(
      {.a = device_a.ref(), .b = device_b.ref(), .cosine = ref::data_of<float>(cosine), .rows = rows, .width = width});
  backend.synchronize();
  return ref::download_array<float>(cosine);
}

TEST_P(RowCosine, IsOneForParallelMinusOneForOppositeAndZeroForZeroRows) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<float> got = row_cosine(*backend, {1, 2, 1, 2, 0, 0, 1, 0}, {2, 4, -3, -6, 1, 1, 0, 1}, 2);
  ref::expect_close(got, std::vector<double>{1, -1, 0, 0}, {.roundings = 1});
}

TEST_P(RowCosine, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t width : {1, 15, 16, 17, 64, 257}) {
    const int64_t rows = 67;
    const std::vector<float> a = ref::rounded(*backend, ref::random_values(rows * width, 1));
    const std::vector<float> b = ref::rounded(*backend, ref::random_values(rows * width, 2));
    std::vector<double> want;
    for (int64_t r = 0; r < rows; ++r) {
      want.push_back(ref::cosine(ref::slice(a, r * width, width), ref::slice(b, r * width, width)));
    }
    // All in double; only the result is rounded.
    ref::expect_close(row_cosine(*backend, a, b, width), want, {.roundings = 1});
  }
}

}  // namespace
}  // namespace kv
