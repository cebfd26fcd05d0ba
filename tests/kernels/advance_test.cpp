#include "kernels/advance.h"

#include <gtest/gtest.h>

#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Advance);

// Two layers of 3 sequences with 2 KV heads; sequence 1 has ended, segments are in another order than sequences.
TEST_P(Advance, MovesSequencesThatGoOnByOneTokenInEveryLayer) {
  KV_BACKEND_OR_SKIP(backend);
  Tensor segments = ref::upload_segments(*backend, {{2, 0, 1, 40}, {1, 1, 0, 7}, {0, 1, 1, 5}});
  Tensor positions = ref::upload_array(*backend, std::vector<int32_t>{40, 5});
  Tensor lengths = ref::upload_array(*backend, std::vector<int32_t>{1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60});
  const auto advance = [&] {
    backend->advance({.segments = reinterpret_cast<Segment*>(ref::data_of<int32_t>(segments)),
                      .segment_count = 3,
                      .positions = ref::data_of<int32_t>(positions),
                      .lengths = ref::data_of<int32_t>(lengths),
                      .layers = 2,
                      .rows = 6,
                      .kv_heads = 2});
  };
  advance();
  advance();
  EXPECT_EQ(ref::download_array<int32_t>(segments), (std::vector<int32_t>{2, 0, 1, 42, 1, 1, 0, 7, 0, 1, 1, 7}));
  EXPECT_EQ(ref::download_array<int32_t>(positions), (std::vector<int32_t>{42, 7}));
  EXPECT_EQ(ref::download_array<int32_t>(lengths), (std::vector<int32_t>{3, 4, 3, 4, 7, 8, 12, 22, 30, 40, 52, 62}));
}

}  // namespace
}  // namespace kv
