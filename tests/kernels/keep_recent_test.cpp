#include "kernels/keep_recent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, KeepRecent);

// f32 whatever the activations are, as log sums.
TEST_P(KeepRecent, HoldsNumbersToo) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t width : {1, 3, 8}) {
    const std::vector<float> vectors = ref::random_values(static_cast<size_t>(5 * width), 3);
    Tensor device_vectors = ref::upload_array(*backend, vectors);
    Tensor recent(*backend, DType::kF32, 3 * width);
    Tensor segments = ref::upload_segments(*backend, {{0, 0, 5, 2}});
    backend->keep_recent({.vectors = device_vectors.ref(),
                          .segments = ref::segments_of(segments),
                          .segment_count = 1,
                          .max_count = 5,
                          .window = 3,
                          .width = width,
                          .recent = recent.ref()});
    // Positions 4, 5 and 6, in places 1, 2 and 0.
    std::vector<float> want = ref::slice(vectors, 2 * width, 3 * width);
    std::rotate(want.begin(), want.end() - width, want.end());
    EXPECT_EQ(ref::download_array<float>(recent), want);
  }
}

// Against a list a sequence that every block is appended to. Blocks of none, some, as many and more than the window, of
// sequences that have seen fewer and more than that; a place that no token has come for yet is left alone.
TEST_P(KeepRecent, HoldsTheNewestVectorsEachInItsPlace) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int window : {1, 7, 8, 9, 20}) {
    for (const int64_t width : {1, 6, 64, 1032}) {
      SCOPED_TRACE(::testing::Message() << window << " of " << width);
      std::vector<std::vector<float>> lists(2);
      std::vector<int32_t> seen = {0, 0};
      const std::vector<float> untouched(static_cast<size_t>(2 * window * width), -8);
      Tensor recent = ref::upload_activations(*backend, untouched);
      uint32_t seed = 0;
      for (const auto& [first, second] : {std::pair(3, 1), {0, window}, {window + 5, 0}, {1, 1}, {2, window + 1}}) {
        const int64_t tokens = first + second;
        const auto vectors = ref::rounded(*backend, ref::random_values(static_cast<size_t>(tokens * width), ++seed));
        Tensor segments = ref::upload_segments(*backend, {{1, 0, first, seen[1]}, {0, first, second, seen[0]}});
        const Tensor device_vectors = ref::upload_activations(*backend, vectors);
        backend->keep_recent({.vectors = device_vectors.ref(),
                              .segments = ref::segments_of(segments),
                              .segment_count = 2,
                              .max_count = std::max(first, second),
                              .window = window,
                              .width = width,
                              .recent = recent.ref()});
        lists[1].insert(lists[1].end(), vectors.begin(), vectors.begin() + first * width);
        lists[0].insert(lists[0].end(), vectors.begin() + first * width, vectors.end());
        seen[0] += second, seen[1] += first;
        std::vector<float> want = untouched;
        for (int s = 0; s < 2; ++s) {
          const std::vector<float>& list = lists[static_cast<size_t>(s)];
          for (int64_t position = std::max(0, seen[static_cast<size_t>(s)] - window);
               position < seen[static_cast<size_t>(s)]; ++position) {
            std::copy_n(list.begin() + position * width, width,
                        want.begin() + (s * window + position % window) * width);
          }
        }
        ASSERT_EQ(ref::download_activations(recent), want);
      }
    }
  }
}

}  // namespace
}  // namespace kv
