#include "kernels/visibility.h"

#include <gtest/gtest.h>

#include "tests/support/paged_cache.h"

namespace kv::ref {
namespace {

class Visibility : public testing::TestWithParam<std::string> {};

// Two sequences of two heads; lengths around a page's 16 entries and an empty row; positions 0, 3, 6, …
TEST_P(Visibility, DividesByTheQueriesThatSawEachEntry) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<int32_t> lengths = {17, 1, 16, 0};
  const PagedCache cache(*backend, random_rows(lengths, 2, 4, 1, 0, 3));
  const std::vector<int32_t> seen = {60, 46};
  const int64_t pitch = 20;
  Tensor scores = upload_array(*backend, std::vector<float>(4 * pitch, 10.0f));
  Tensor device_seen = upload_array(*backend, seen);
  backend->visibility(
      {.cache = cache.view(), .tokens_seen = data_of<int32_t>(device_seen), .scores = scores.slots<float>(pitch)});
  const std::vector<float> got = download_array<float>(scores);
  for (int row = 0; row < 4; ++row) {
    for (int slot = 0; slot < pitch; ++slot) {
      const float age = static_cast<float>(seen[static_cast<size_t>(row / 2)] - 3 * slot);
      const float want = slot < lengths[static_cast<size_t>(row)] ? 10.0f / age : 10.0f;
      EXPECT_EQ(got[static_cast<size_t>(row * pitch + slot)], want) << "row " << row << ", slot " << slot;
    }
  }
}

TEST_P(Visibility, LeavesRowsThatAreNotDue) {
  KV_BACKEND_OR_SKIP(backend);
  const PagedCache cache(*backend, random_rows({2, 2}, 1, 4, 1));
  Tensor scores = upload_array(*backend, std::vector<float>{6, 6, 6, 6});
  Tensor seen = upload_array(*backend, std::vector<int32_t>{3, 3});
  Tensor due = upload_array(*backend, std::vector<uint8_t>{0, 1});
  backend->visibility({.cache = cache.view(),
                       .tokens_seen = data_of<int32_t>(seen),
                       .rows_due = data_of<uint8_t>(due),
                       .scores = scores.slots<float>(2)});
  EXPECT_EQ(download_array<float>(scores), (std::vector<float>{6, 6, 2, 3}));
}

INSTANTIATE_TEST_SUITE_P(Ops, Visibility, testing::ValuesIn(backend_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace kv::ref
