#include "kernels/embed.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;

// One block a row, copied in the widest words that width and pointers allow.
template <class Word>
__global__ void embed_kernel(const Word* table, const int32_t* ids, Word* output, int64_t words) {
  const int64_t row = blockIdx.x;
  const Word* from = table + ids[row] * words;
  for (int64_t i = threadIdx.x; i < words; i += kThreads) output[row * words + i] = from[i];
}

}  // namespace

void embed(const EmbedArgs& args) {
  const bf16* table = args.table.as<bf16>();
  bf16* output = args.output.as<bf16>();
  if (args.width % 8 == 0 && is_aligned(table, 16) && is_aligned(output, 16)) {
    launch(embed_kernel<uint4>, args.rows, kThreads, 0, reinterpret_cast<const uint4*>(table), args.ids,
           reinterpret_cast<uint4*>(output), args.width / 8);
  } else {
    launch(embed_kernel<bf16>, args.rows, kThreads, 0, table, args.ids, output, args.width);
  }
}

}  // namespace kv::cuda
