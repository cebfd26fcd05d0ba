#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/support/address_space.h"

namespace kv {
namespace {

TEST(CpuMemory, IsNoMoreThanTheProcessMayTake) {
  const auto backend = make_backend("cpu");
  constexpr size_t kMore = 100'000'000;
  ASSERT_GT(backend->memory().free, kMore);
  {
    const ref::AddressSpaceLimit limit(kMore);
    EXPECT_LE(backend->memory().free, kMore);
    EXPECT_GT(backend->memory().free, kMore / 2);
  }
  EXPECT_GT(backend->memory().free, kMore);
}

}  // namespace
}  // namespace kv
