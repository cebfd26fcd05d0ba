#include "kernels/embed.h"

#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Embed);

TEST_P(Embed, CopiesTheRowOfEachToken) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int64_t kVocab = 50;
  for (const int64_t width : {1, 7, 64}) {
    for (const int64_t rows : {0, 1, 255, 256, 257}) {
      const std::vector<float> table = ref::rounded(*backend, ref::random_values(kVocab * width, 1));
      std::vector<int32_t> ids;
      std::vector<float> want;
      for (int64_t r = 0; r < rows; ++r) {
        ids.push_back(static_cast<int32_t>((r * 7 + 49) % kVocab));  // starts with the last row
        const std::vector<float> row = ref::slice(table, ids.back() * width, width);
        want.insert(want.end(), row.begin(), row.end());
      }
      const Tensor t = ref::upload_activations(*backend, table), i = ref::upload_array(*backend, ids);
      Tensor output(*backend, backend->activation_type(), rows * width);
      backend->embed(
          {.table = t.ref(), .ids = i.ref().as<int32_t>(), .output = output.ref(), .rows = rows, .width = width});
      backend->synchronize();
      EXPECT_EQ(ref::download_activations(output), want);
    }
  }
}

}  // namespace
}  // namespace kv
