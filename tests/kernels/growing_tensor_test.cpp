#include "kernels/growing_tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, GrowingTensors);

std::vector<int32_t> contents(Backend& backend, const GrowingTensor& tensor, int64_t elements) {
  std::vector<int32_t> host(static_cast<size_t>(elements));
  backend.download(host.data(), tensor.ref().data, host.size() * sizeof(int32_t));
  return host;
}

void write(Backend& backend, GrowingTensor& tensor, const std::vector<int32_t>& values) {
  backend.upload(tensor.ref().data, values.data(), values.size() * sizeof(int32_t));
}

// Over sizes of which some fit what lies behind already, and none does; on the host from a heap's block to a mapped
// one.
TEST_P(GrowingTensors, KeepWhatTheyHoldAndPoisonWhatIsNew) {
  KV_BACKEND_OR_SKIP(backend);
  GrowingTensor tensor;
  EXPECT_FALSE(tensor);
  std::vector<int32_t> expected;
  for (const int64_t elements : {3, 4, 1000, 700'000, 700'001, 30'000'000}) {
    tensor.grow(*backend, DType::kI32, elements);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.ref().data) % 64, 0U);
    expected.resize(static_cast<size_t>(elements), -1);
    ASSERT_EQ(contents(*backend, tensor, elements), expected) << elements;
    std::iota(expected.begin(), expected.end(), static_cast<int32_t>(elements));
    write(*backend, tensor, expected);
  }
  tensor.grow(*backend, DType::kI32, 5);
  EXPECT_EQ(contents(*backend, tensor, 30'000'000), expected) << "they never shrink";
}

// Twice of what is free; what was there stays.
TEST_P(GrowingTensors, ThatFindNoMemorySaySoAndAreAsBefore) {
  KV_BACKEND_OR_SKIP(backend);
  GrowingTensor tensor;
  tensor.grow(*backend, DType::kI32, 3);
  write(*backend, tensor, {1, 2, 3});
  const auto twice = static_cast<int64_t>(backend->memory().free / sizeof(int32_t) * 2);
  EXPECT_THROW(tensor.grow(*backend, DType::kI32, twice), MemoryError);
  EXPECT_EQ(contents(*backend, tensor, 3), (std::vector<int32_t>{1, 2, 3}));
}

TEST_P(GrowingTensors, ThatMovedAwayAreEmptyAndGrowAgain) {
  KV_BACKEND_OR_SKIP(backend);
  GrowingTensor first;
  first.grow(*backend, DType::kI32, 3);
  write(*backend, first, {1, 2, 3});
  GrowingTensor second = std::move(first);
  EXPECT_EQ(contents(*backend, second, 3), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move): that is the question
  first.grow(*backend, DType::kI32, 2);
  EXPECT_EQ(contents(*backend, first, 2), (std::vector<int32_t>{-1, -1}));
}

TEST_P(GrowingTensors, TakeNoSecondCopyAndGiveBackAll) {
  KV_BACKEND_OR_SKIP(backend);
  const size_t before = backend->bytes_in_use();
  backend->reset_peak();
  {
    GrowingTensor tensor;
    tensor.grow(*backend, DType::kF32, 10'000'000);
    tensor.grow(*backend, DType::kF32, 11'000'000);
    EXPECT_EQ(backend->bytes_in_use(), before + 44'000'000);
  }
  EXPECT_EQ(backend->peak_bytes(), before + 44'000'000);
  EXPECT_EQ(backend->bytes_in_use(), before);
}

}  // namespace
}  // namespace kv
