#include "kernels/cpu/panel.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/this_build.h"

namespace kv {
namespace {

// Inner loops go unchecked there (kernels/cpu/looked_at.h), so one number too few must be seen before them.
TEST(PanelDeathTest, SanitizersSeeARowThatEndsTooEarly) {
  if (!ref::is_sanitized()) GTEST_SKIP() << "a build without AddressSanitizer";
  constexpr int64_t kRows = 3, kColumns = 8, kDepth = 40, kApart = 64;
  const auto numbers = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count), 1.0F); };
  const auto product = [&](int64_t less_a, int64_t less_b, int64_t less_c) {
    const std::vector<float> a = numbers((kRows - 1) * kApart + kDepth - less_a);
    const std::vector<float> b = numbers((kDepth - 1) * kApart + cpu::kPanelWidth - less_b);
    std::vector<float> c = numbers((kRows - 1) * kApart + kColumns - less_c);
    cpu::panel_product(
        {.a = a.data(), .lda = kApart, .b = b.data(), .ldb = kApart, .k = kDepth, .c = c.data(), .ldc = kApart}, kRows,
        kColumns);
  };
  product(0, 0, 0);
  EXPECT_DEATH(product(1, 0, 0), "heap-buffer-overflow");
  EXPECT_DEATH(product(0, 1, 0), "heap-buffer-overflow");
  EXPECT_DEATH(product(0, 0, 1), "heap-buffer-overflow");
  const std::vector<float> whole = numbers(kDepth), less = numbers(kDepth - 1);
  std::vector<float> turned = numbers(kDepth - 1);
  EXPECT_DEATH(cpu::wide_dot(less.data(), whole.data(), kDepth), "heap-buffer-overflow");
  EXPECT_DEATH(cpu::wide_dot(whole.data(), less.data(), kDepth), "heap-buffer-overflow");
  EXPECT_DEATH(cpu::transpose(whole.data(), 1, kDepth, kDepth, turned.data(), 1), "heap-buffer-overflow");
  EXPECT_DEATH(cpu::transpose(less.data(), 1, kDepth, kDepth, turned.data(), 1), "heap-buffer-overflow");
}

}  // namespace
}  // namespace kv
