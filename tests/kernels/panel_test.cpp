#include "kernels/cpu/panel.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/this_build.h"

namespace kv {
namespace {

// Inner loops go unchecked there (kernels/cpu/looked_at.h), so one number too few must be seen before them.
TEST(PanelDeathTest, SanitizersSeeARowThatEndsTooEarly) {
  if (!ref::is_sanitized()) GTEST_SKIP() << "a build without AddressSanitizer";
  // Rows are further apart than a panel is wide, so that the last one is missing as a whole.
  constexpr int64_t kRows = 3, kColumns = 8, kDepth = 40, kApart = 64;
  const auto rows = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count * kApart), 1.0F); };
  const auto numbers = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count), 1.0F); };
  const auto product = [&](int64_t rows_of_a, int64_t rows_of_b, int64_t rows_of_c) {
    const std::vector<float> a = rows(rows_of_a), b = rows(rows_of_b);
    std::vector<float> c = rows(rows_of_c);
    cpu::panel_product(
        {.a = a.data(), .lda = kApart, .b = b.data(), .ldb = kApart, .k = kDepth, .c = c.data(), .ldc = kApart}, kRows,
        kColumns);
  };
  product(kRows, kDepth, kRows);
  EXPECT_DEATH(product(kRows - 1, kDepth, kRows), "heap-buffer-overflow");
  EXPECT_DEATH(product(kRows, kDepth - 1, kRows), "heap-buffer-overflow");
  EXPECT_DEATH(product(kRows, kDepth, kRows - 1), "heap-buffer-overflow");
  const std::vector<float> whole = numbers(kDepth), less = numbers(kDepth - 1);
  std::vector<float> turned = numbers(kDepth - 1);
  EXPECT_DEATH(cpu::wide_dot(less.data(), whole.data(), kDepth), "heap-buffer-overflow");
  EXPECT_DEATH(cpu::wide_dot(whole.data(), less.data(), kDepth), "heap-buffer-overflow");
  EXPECT_DEATH(cpu::transpose(whole.data(), 1, kDepth, kDepth, turned.data(), 1), "heap-buffer-overflow");
  EXPECT_DEATH(cpu::transpose(less.data(), 1, kDepth, kDepth, turned.data(), 1), "heap-buffer-overflow");
}

}  // namespace
}  // namespace kv
