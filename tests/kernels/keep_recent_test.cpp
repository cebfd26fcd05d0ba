#include "kernels/keep_recent.h"

#include <gtest/gtest.h>

#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, KeepRecent);

// Against a list a sequence that every block is appended to. Blocks of none, some, as many and more than the window.
TEST_P(KeepRecent, HoldsTheNewestVectorsOldestFirst) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int window : {1, 7, 8, 9, 20}) {
    for (const int64_t width : {1, 6, 64, 1032}) {
      std::vector<std::vector<float>> lists(2, std::vector<float>(static_cast<size_t>(window * width), 0.0f));
      Tensor recent = ref::upload_activations(*backend, std::vector<float>(static_cast<size_t>(2 * window * width)));
      uint32_t seed = 0;
      for (const auto& [first, second] : {std::pair(3, 1), {0, window}, {window + 5, 0}, {1, 1}, {2, window + 1}}) {
        const int64_t tokens = first + second;
        const auto vectors = ref::rounded(*backend, ref::random_values(static_cast<size_t>(tokens * width), ++seed));
        Tensor segments = ref::upload_segments(*backend, {{1, 0, first, 0}, {0, first, second, 0}});
        const Tensor device_vectors = ref::upload_activations(*backend, vectors);
        backend->keep_recent({.vectors = device_vectors.ref(),
                              .segments = ref::segments_of(segments),
                              .segment_count = 2,
                              .window = window,
                              .width = width,
                              .recent = recent.ref()});
        lists[1].insert(lists[1].end(), vectors.begin(), vectors.begin() + first * width);
        lists[0].insert(lists[0].end(), vectors.begin() + first * width, vectors.end());
        std::vector<float> want;
        for (const auto& list : lists) want.insert(want.end(), list.end() - window * width, list.end());
        ASSERT_EQ(ref::download_activations(recent), want) << window << " of " << width;
      }
    }
  }
}

}  // namespace
}  // namespace kv
