#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/paged.h"
#include "tests/support/backends.h"

// Small conveniences of the op tests.
namespace kv::ref {

template <class T>
std::vector<T> slice(const std::vector<T>& values, int64_t first, int64_t count) {
  return {values.begin() + first, values.begin() + first + count};
}

// Fresh memory is NaN: what is still NaN was not written.
inline void expect_untouched(const std::vector<float>& values, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; ++i) ASSERT_TRUE(std::isnan(values[i])) << "place " << i << " was written";
}

inline Tensor upload_segments(Backend& backend, const std::vector<Segment>& segments) {
  std::vector<int32_t> words;
  for (const Segment& s : segments) {
    words.insert(words.end(), {s.sequence, s.first_token, s.count, s.first_position});
  }
  return upload_array(backend, words);
}

inline const Segment* segments_of(Tensor& words) { return reinterpret_cast<const Segment*>(data_of<int32_t>(words)); }

inline std::string backend_case(const ::testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace kv::ref

// A suite whose cases run on each backend. Kind: Ops for those of single ops, else Runs; tests/gpu/run_tests.sh tells
// them apart.
// NOLINTBEGIN(bugprone-macro-parentheses): a class name cannot be parenthesised
#define KV_OVER_BACKENDS(Kind, Suite)                            \
  class Suite : public ::testing::TestWithParam<std::string> {}; \
  INSTANTIATE_TEST_SUITE_P(Kind, Suite, ::testing::ValuesIn(::kv::ref::backend_names()), ::kv::ref::backend_case)
// NOLINTEND(bugprone-macro-parentheses)
