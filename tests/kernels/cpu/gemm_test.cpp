#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/close.h"

namespace kv {
namespace {

struct Shape {
  int64_t m, n, k;
};

using Gemm = void (*)(const float*, int64_t, int64_t, const float*, int64_t, int64_t, int64_t, float*, int64_t, float,
                      cpu::Write);

// Both forms of b, with strides larger than the rows, whose padding is NaN (also behind the last row: not readable).
void check(Gemm gemm, const Shape& shape, cpu::Write write) {
  const auto& [m, n, k] = shape;
  SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k);
  const bool transposed = gemm == cpu::gemm_nt;
  const int64_t lda = k + 3, ldb = (transposed ? k : n) + 5, ldc = n + 2;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto padded = [&](int64_t rows, int64_t columns, int64_t stride, uint32_t seed) {
    std::vector<float> matrix = ref::random_values(static_cast<size_t>(rows * stride), seed);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = columns; j < stride; ++j) matrix[r * stride + j] = nan;
    }
    return matrix;
  };
  const std::vector<float> a = padded(m, k, lda, 1);
  const std::vector<float> b = transposed ? padded(n, k, ldb, 2) : padded(k, n, ldb, 2);
  std::vector<float> c = padded(m, n, ldc, 3);
  const std::vector<float> before = c;
  gemm(a.data(), m, lda, b.data(), n, ldb, k, c.data(), ldc, 0.5f, write);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      double want = write == cpu::Write::kAdd ? before[r * ldc + j] : 0;
      double magnitude = std::abs(want);
      for (int64_t i = 0; i < k; ++i) {
        const double term = 0.5 * a[r * lda + i] * b[transposed ? j * ldb + i : i * ldb + j];
        want += term;
        magnitude += std::abs(term);
      }
      // k multiply-adds, the scale, and the addition to c once a block of depth.
      ASSERT_TRUE(ref::is_close(c[r * ldc + j], want,
                                {.roundings = static_cast<double>(k) + 2 + static_cast<double>(k) / cpu::kPanelDepth,
                                 .magnitude = magnitude}))
          << "row " << r << " column " << j;
    }
    for (int64_t j = n; j < ldc; ++j) ASSERT_TRUE(std::isnan(c[r * ldc + j])) << "padding was written";
  }
}

TEST(Gemm, MatchesTheReferenceOverShapes) {
  for (const Shape& shape :
       {Shape{1, 1, 1}, Shape{1, 31, 15}, Shape{5, 32, 16}, Shape{6, 33, 17}, Shape{11, 64, 255}, Shape{12, 65, 256},
        Shape{13, 16, 257}, Shape{25, 47, 600}, Shape{3, 8, 0}, Shape{0, 8, 8}, Shape{8, 0, 8}}) {
    for (const Gemm gemm : {cpu::gemm_nt, cpu::gemm_nn}) {
      for (const cpu::Write write : {cpu::Write::kReplace, cpu::Write::kAdd}) {
        check(gemm, shape, write);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace kv
