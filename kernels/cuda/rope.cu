#include "kernels/rope.h"

#include "kernels/cuda/inverse_rms.cuh"
#include "kernels/cuda/turn.cuh"
#include "kernels/rms_norm.h"

namespace kv::cuda {

namespace {

using namespace turning;

constexpr int kTogether = 2;  // words of either half that a thread has on the way

// A RopeVectors, or none, in words.
template <class Word>
struct Vectors {
  const Word* input = nullptr;
  const Word* norm = nullptr;
  Word* normed = nullptr;
  Word* output = nullptr;
  int heads = 0;
};

// What the norm makes of a head.
__device__ void norm_head(uint4 (&held)[2], const uint4 (&weights_held)[2], bool has_norm, const Block& block,
                          int words, float epsilon) {
  auto* values = reinterpret_cast<bf16*>(held);
  float sum = 0;
#pragma unroll
  for (int e = 0; e < 16; ++e) sum += to_f32(values[e]) * to_f32(values[e]);
  sum = head_sum(sum, words);
  if (!has_norm) return;
  const float scale = inverse_rms(sum, block.inverse_dim, epsilon);
  const auto* weights = reinterpret_cast<const bf16*>(weights_held);
#pragma unroll
  for (int e = 0; e < 16; ++e) values[e] = to_bf16(to_f32(values[e]) * scale * to_f32(weights[e]));
}

// The angles of a single token, as a step's are, are taken while the kernel before is still at work, others while the
// first words are on their way.
template <class Word, bool kNorms>
__global__ void __launch_bounds__(kThreads, kNorms ? 4 : 5)
    rope_kernel(Both<Vectors<Word>> both, RopeArgs args, Block block) {
  extern __shared__ __align__(16) float turns[];                            // cosines by token, then sines
  const int half = args.angles.head_dim / 2, words = half / kValues<Word>;  // of half a vector
  const int64_t first_token = int64_t{blockIdx.x} * block.tokens;
  const int tokens = static_cast<int>(min(int64_t{block.tokens}, args.angles.tokens - first_token));
  const int count = tokens * both.heads() * words;
  float* sines = turns + block.tokens * half;
  const auto place_of = [&](int i) { return Place(both, block, first_token, words, i); };
  const bool has_one_token = block.tokens == 1;
  let_next_start();
  if (has_one_token) fill_turns(args.angles, Direction::kForward, first_token, tokens, turns, sines);
  wait_for_previous();
  for (int first = 0; first < count; first += kThreads * kTogether) {
    Word held[kTogether][2], weights[kNorms ? kTogether : 1][2];  // the norm's, on their way with what they scale
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * kThreads + static_cast<int>(threadIdx.x);
      held[k][0] = held[k][1] = Word{};
      if (i >= count) continue;
      const Place place = place_of(i);
      const Word* input = place.of(both.first.input, both.second.input);
      held[k][0] = input[place.at], held[k][1] = input[place.at + words];
      if constexpr (kNorms) {
        const Word* norm = place.of(both.first.norm, both.second.norm);
        if (norm) weights[k][0] = norm[place.word], weights[k][1] = norm[place.word + words];
      }
    }
    if (first == 0 && !has_one_token) fill_turns(args.angles, Direction::kForward, first_token, tokens, turns, sines);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * kThreads + static_cast<int>(threadIdx.x);
      const Place place = place_of(min(i, count - 1));
      if constexpr (kNorms) {
        const bool has_norm = place.of(both.first.norm, both.second.norm) != nullptr;
        norm_head(held[k], weights[k], has_norm, block, words, args.norm_epsilon);
        Word* normed = place.of(both.first.normed, both.second.normed);
        if (i < count && has_norm) normed[place.at] = held[k][0], normed[place.at + words] = held[k][1];
      }
      if (i >= count) continue;
      const int angles = place.token * half + place.word * kValues<Word>;
      turn(held[k][0], held[k][1], turns + angles, sines + angles, [&](int e, float a, float b) {
        reinterpret_cast<bf16*>(&held[k][0])[e] = to_bf16(a);
        reinterpret_cast<bf16*>(&held[k][1])[e] = to_bf16(b);
      });
      Word* output = place.of(both.first.output, both.second.output);
      output[place.at] = held[k][0], output[place.at + words] = held[k][1];
    }
  }
}

template <class Word>
Vectors<Word> pointers(const RopeVectors& vectors) {
  return {.input = words_of<Word>(vectors.input),
          .norm = words_of<Word>(vectors.norm),
          .normed = words_of<Word>(vectors.normed),
          .output = words_of<Word>(vectors.output),
          .heads = vectors.heads};
}

bool are_words(const RopeVectors& vectors) {
  return is_aligned(vectors.input.data, 16) && is_aligned(vectors.norm.data, 16) &&
         is_aligned(vectors.normed.data, 16) && is_aligned(vectors.output.data, 16);
}

template <class Word, bool kNorms>
void run(const RopeArgs& args) {
  const Both<Vectors<Word>> both{pointers<Word>(args.vectors[0]), pointers<Word>(args.vectors[1])};
  const Block block = block_of<Word>(args.angles, both.heads());
  launch_early(rope_kernel<Word, kNorms>, ceil_div(args.angles.tokens, block.tokens), kThreads,
               turns_bytes(args.angles, block), both, args, block);
}

// After the norms as kernels of their own.
RopeArgs after_norms(const RopeArgs& args) {
  RopeArgs after = args;
  for (RopeVectors& vectors : after.vectors) {
    if (!vectors.norm) continue;
    rms_norm({.input = vectors.input,
              .weight = vectors.norm,
              .output = vectors.normed,
              .rows = args.angles.tokens * vectors.heads,
              .width = args.angles.head_dim,
              .epsilon = args.norm_epsilon});
    vectors.input = vectors.normed;
    vectors.norm = {};
  }
  return after;
}

}  // namespace

void rope(const RopeArgs& args) {
  check_rope(args);
  if (args.vectors[0].heads + args.vectors[1].heads == 0) return;
  switch (way_of(args.angles, args.vectors, are_words)) {
    case Way::kWords:
      return run<uint4, false>(args);
    case Way::kWordsAndNorms:
      return run<uint4, true>(args);
    case Way::kNormsApart:
      return rope(after_norms(args));
    case Way::kOneByOne:
      return run<bf16, false>(args);
  }
}

}  // namespace kv::cuda
