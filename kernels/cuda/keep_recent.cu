#include "kernels/keep_recent.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kBatch = 8;  // vectors that are read before the first of them is overwritten

// A thread owns one word of every vector of a sequence, so that it may move them in place.
template <class Word>
__global__ void keep_recent_kernel(KeepRecentArgs args, const Word* vectors, Word* recent, int64_t words,
                                   int64_t tiles) {
  const Segment segment = args.segments[blockIdx.x / tiles];
  const int64_t word = blockIdx.x % tiles * kThreads + threadIdx.x;
  const int fresh = min(segment.count, args.window);
  if (word >= words || fresh == 0) return;
  Word* sequence_words = recent + int64_t{segment.sequence} * args.window * words + word;
  const Word* newest = vectors + int64_t{segment.first_token + segment.count - fresh} * words + word;
  const int old = args.window - fresh;
  for (int first = 0; first < args.window; first += kBatch) {
    Word held[kBatch];
#pragma unroll
    for (int e = 0; e < kBatch; ++e) {
      const int i = first + e;
      if (i < args.window) held[e] = i < old ? sequence_words[(i + fresh) * words] : newest[(i - old) * words];
    }
#pragma unroll
    for (int e = 0; e < kBatch; ++e) {
      if (first + e < args.window) sequence_words[(first + e) * words] = held[e];
    }
  }
}

template <class Word>
void run(const KeepRecentArgs& args, const bf16* vectors, bf16* recent) {
  const int64_t words = args.width * sizeof(bf16) / sizeof(Word);
  const int64_t tiles = ceil_div(words, kThreads);
  launch(keep_recent_kernel<Word>, args.segment_count * tiles, kThreads, 0, args,
         reinterpret_cast<const Word*>(vectors), reinterpret_cast<Word*>(recent), words, tiles);
}

}  // namespace

void keep_recent(const KeepRecentArgs& args) {
  const bf16* vectors = args.vectors.as<bf16>();
  bf16* recent = args.recent.as<bf16>();
  if (args.width % 8 == 0 && is_aligned(vectors, 16) && is_aligned(recent, 16)) {
    run<uint4>(args, vectors, recent);
  } else {
    run<bf16>(args, vectors, recent);
  }
}

}  // namespace kv::cuda
