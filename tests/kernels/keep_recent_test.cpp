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
    Tensor device_vectors = ref::upload_array(*backend, vectors), ordered(*backend, DType::kF32, 3 * width);
    Tensor recent(*backend, DType::kF32, 3 * width);
    Tensor segments = ref::upload_segments(*backend, {{0, 0, 5, 2}});
    backend->keep_recent({.vectors = device_vectors.ref(),
                          .segments = ref::segments_of(segments),
                          .segment_count = 1,
                          .max_count = 5,
                          .window = 3,
                          .width = width,
                          .recent = recent.ref()});
    Tensor seen = ref::upload_array(*backend, std::vector<int32_t>{7});
    backend->order_recent({.recent = recent.ref(),
                           .seen = ref::data_of<int32_t>(seen),
                           .sequences = 1,
                           .window = 3,
                           .width = width,
                           .ordered = ordered.ref()});
    EXPECT_EQ(ref::download_array<float>(ordered), ref::slice(vectors, 2 * width, 3 * width));
  }
}

// Against a list a sequence that every block is appended to. Blocks of none, some, as many and more than the window, of
// sequences that have seen fewer and more than that; what no token has come for yet is left alone.
TEST_P(KeepRecent, HoldsTheNewestVectorsWhichComeOutOldestFirst) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int window : {1, 7, 8, 9, 20}) {
    for (const int64_t width : {1, 6, 64, 1032}) {
      SCOPED_TRACE(::testing::Message() << window << " of " << width);
      std::vector<std::vector<float>> lists(2);
      std::vector<int32_t> seen = {0, 0};
      Tensor recent = ref::upload_activations(*backend, std::vector<float>(static_cast<size_t>(2 * window * width)));
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
        const std::vector<float> untouched(static_cast<size_t>(2 * window * width), -8);
        Tensor ordered = ref::upload_activations(*backend, untouched), on_seen = ref::upload_array(*backend, seen);
        backend->order_recent({.recent = recent.ref(),
                               .seen = ref::data_of<int32_t>(on_seen),
                               .sequences = 2,
                               .window = window,
                               .width = width,
                               .ordered = ordered.ref()});
        std::vector<float> want;
        for (auto list : lists) {
          list.insert(list.begin(), untouched.begin(), untouched.begin() + window * width);
          want.insert(want.end(), list.end() - window * width, list.end());
        }
        ASSERT_EQ(ref::download_activations(ordered), want);
      }
    }
  }
}

}  // namespace
}  // namespace kv
