#include "kernels/row_distance.h"

#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RowDistance);

struct Distances {
  std::vector<float> distance, length;
};

Distances row_distance(Backend& backend, const std::vector<float>& a, const std::vector<float>& b, int64_t width) {
  const int64_t rows = static_cast<int64_t>(a.size()) / width;
  Tensor device_a = ref::upload_activations(backend, a), device_b = ref::upload_activations(backend, b);
  Tensor distance(backend, DType::kF32, rows), length(backend, DType::kF32, rows);
  backend.row_distance({.a = device_a.ref(),
                        .b = device_b.ref(),
                        .distance = ref::data_of<float>(distance),
                        .length = ref::data_of<float>(length),
                        .rows = rows,
                        .width = width});
  backend.synchronize();
  return {ref::download_array<float>(distance), ref::download_array<float>(length)};
}

TEST_P(RowDistance, IsTheSquareOfTheDifferenceBesideThatOfB) {
  KV_BACKEND_OR_SKIP(backend);
  const Distances got = row_distance(*backend, {1, 2, 0, 0, 3, 4}, {1, 2, 3, 4, 0, 0}, 2);
  ref::expect_close(got.distance, std::vector<double>{0, 25, 25}, {.roundings = 1, .magnitude = 25});
  ref::expect_close(got.length, std::vector<double>{5, 25, 0}, {.roundings = 1, .magnitude = 25});
}

TEST_P(RowDistance, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t width : {1, 15, 16, 17, 64, 257}) {
    const int64_t rows = 67;
    const std::vector<float> a = ref::rounded(*backend, ref::random_values(rows * width, 1));
    const std::vector<float> b = ref::rounded(*backend, ref::random_values(rows * width, 2));
    std::vector<double> distance(rows, 0), length(rows, 0);
    for (int64_t i = 0; i < rows * width; ++i) {
      const double x = a[static_cast<size_t>(i)], y = b[static_cast<size_t>(i)];
      distance[static_cast<size_t>(i / width)] += (x - y) * (x - y);
      length[static_cast<size_t>(i / width)] += y * y;
    }
    const Distances got = row_distance(*backend, a, b, width);
    for (size_t row = 0; row < distance.size(); ++row) {
      // All in double; only the results are rounded.
      ref::expect_close(got.distance[row], distance[row], {.roundings = 1, .magnitude = distance[row]});
      ref::expect_close(got.length[row], length[row], {.roundings = 1, .magnitude = length[row]});
    }
  }
}

}  // namespace
}  // namespace kv
