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

template <class Word>
__global__ void order(OrderRecentArgs args, const Word* recent, Word* ordered, int64_t words, int64_t tiles) {
  const Place at(args.window, tiles);
  const int64_t position = int64_t{args.seen[at.sequence]} - args.window + at.vector;
  if (at.word >= words || position < 0) return;
  const int64_t sequence = at.sequence * args.window;
  ordered[(sequence + at.vector) * words + at.word] = recent[(sequence + position % args.window) * words + at.word];
}

// Calls with a word, and how many a vector has.
template <class Call>
void with_words(int64_t width, const bf16* a, const bf16* b, const Call& call) {
  if (width % 8 == 0 && is_aligned(a, 16) && is_aligned(b, 16)) {
    call(uint4{}, width / 8);
  } else {
    call(bf16{}, width);
  }
}

}  // namespace

void keep_recent(const KeepRecentArgs& args) {
  const bf16* vectors = args.vectors.as<bf16>();
  bf16* recent = args.recent.as<bf16>();
  const int64_t most = std::min<int64_t>(args.max_count, args.window);
  with_words(args.width, vectors, recent, [&](auto word, int64_t words) {
    using Word = decltype(word);
    const int64_t tiles = ceil_div(words, kThreads);
    launch(keep<Word>, args.segment_count * most * tiles, kThreads, 0, args, reinterpret_cast<const Word*>(vectors),
           reinterpret_cast<Word*>(recent), words, most, tiles);
  });
}

void order_recent(const OrderRecentArgs& args) {
  const bf16* recent = args.recent.as<bf16>();
  bf16* ordered = args.ordered.as<bf16>();
  with_words(args.width, recent, ordered, [&](auto word, int64_t words) {
    using Word = decltype(word);
    const int64_t tiles = ceil_div(words, kThreads);
    launch(order<Word>, args.sequences * args.window * tiles, kThreads, 0, args, reinterpret_cast<const Word*>(recent),
           reinterpret_cast<Word*>(ordered), words, tiles);
  });
}

}  // namespace kv::cuda
