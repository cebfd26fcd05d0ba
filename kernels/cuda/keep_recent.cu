#include "kernels/keep_recent.h"

#include <algorithm>

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;

// A word of a vector a thread: blocks of (sequence, vector, tile of words).
struct Place {
  int64_t sequence, vector, word;

  __device__ Place(int64_t vectors, int64_t tiles)
      : sequence(blockIdx.x / tiles / vectors),
        vector(blockIdx.x / tiles % vectors),
        word(blockIdx.x % tiles * kThreads + threadIdx.x) {}
};

template <class Word>
__global__ void keep(KeepRecentArgs args, const Word* vectors, Word* recent, int64_t words, int64_t most,
                     int64_t tiles) {
  const Place at(most, tiles);
  const Segment segment = args.segments[at.sequence];
  const int64_t token = segment.count - 1 - at.vector;
  if (at.word >= words || token < 0) return;
  const int64_t place = (segment.first_position + token) % args.window;
  recent[(int64_t{segment.sequence} * args.window + place) * words + at.word] =
      vectors[(segment.first_token + token) * words + at.word];
}

// Calls with a word, and how many a vector has: the widest that its bytes and the pointers allow.
template <class Call>
void with_words(int64_t width, const ConstRef& a, const ConstRef& b, const Call& call) {
  KV_CHECK(a.dtype == b.dtype);
  const int64_t bytes = width * static_cast<int64_t>(bytes_of(a.dtype));
  if (bytes % 16 == 0 && is_aligned(a.data, 16) && is_aligned(b.data, 16)) {
    call(uint4{}, bytes / 16);
  } else {
    call(uint16_t{}, bytes / 2);
  }
}

}  // namespace

void keep_recent(const KeepRecentArgs& args) {
  const int64_t most = std::min<int64_t>(args.max_count, args.window);
  with_words(args.width, args.vectors, args.recent, [&](auto word, int64_t words) {
    using Word = decltype(word);
    const int64_t tiles = ceil_div(words, kThreads);
    launch(keep<Word>, args.segment_count * most * tiles, kThreads, 0, args,
           static_cast<const Word*>(args.vectors.data), static_cast<Word*>(args.recent.data), words, most, tiles);
  });
}

}  // namespace kv::cuda
