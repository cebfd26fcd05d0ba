#include "kernels/cuda/inverse_rms.cuh"
#include "kernels/cuda/turn.cuh"
#include "kernels/rms_norm.h"

namespace kv::cuda {

namespace {

using namespace turning;

// A RopeGradients, or none, in words.
template <class Word>
struct Gradients {
  const Word* of_output = nullptr;
  const Word* addend = nullptr;
  const Word* norm = nullptr;
  const Word* input = nullptr;
  Word* of_input = nullptr;
  int heads = 0;
};

// The same word of either half.
template <class Word>
struct Halves {
  Word first{}, second{};

  __device__ void load(const Word* from, int64_t at, int words) { first = from[at], second = from[at + words]; }
  // The e-th value of both.
  __device__ float value(int e) const {
    constexpr int kEach = kValues<Word>;
    const auto* values = reinterpret_cast<const bf16*>(e < kEach ? &first : &second);
    return to_f32(values[e % kEach]);
  }
};

// From the gradient of what a norm has made of a head to that of what it has read.
template <class Word>
__device__ void norm_back(float (&gradient)[2 * kValues<Word>], const Halves<Word>& input, const Halves<Word>& weights,
                          bool has_norm, const Block& block, int words, float epsilon) {
  float squares = 0, along = 0;
#pragma unroll
  for (int e = 0; e < 2 * kValues<Word>; ++e) {
    const float x = input.value(e);
    squares += x * x;
    if (has_norm) gradient[e] *= weights.value(e);
    along += gradient[e] * x;
  }
  squares = head_sum(squares, words);
  along = head_sum(along, words);
  if (!has_norm) return;
  const NormSlope slope(squares, along, block.inverse_dim, epsilon);
#pragma unroll
  for (int e = 0; e < 2 * kValues<Word>; ++e) gradient[e] = slope(gradient[e], input.value(e));
}

template <class Word, bool kNorms>
__global__ void __launch_bounds__(kThreads, kNorms ? 4 : 5)
    rope_backward_kernel(Both<Gradients<Word>> both, RopeBackwardArgs args, Block block) {
  extern __shared__ __align__(16) float turns[];  // cosines by token, then sines
  constexpr int kEach = kValues<Word>;
  const int half = args.angles.head_dim / 2, words = half / kEach;  // of half a vector
  const int64_t first_token = int64_t{blockIdx.x} * block.tokens;
  const int tokens = static_cast<int>(min(int64_t{block.tokens}, args.angles.tokens - first_token));
  const int count = tokens * both.heads() * words;
  float* sines = turns + block.tokens * half;
  let_next_start();
  wait_for_previous();
  for (int first = 0; first < count; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const Place place(both, block, first_token, words, min(i, count - 1));
    const Word* addend = place.of(both.first.addend, both.second.addend);
    const Word* norm = kNorms ? place.of(both.first.norm, both.second.norm) : nullptr;
    Halves<Word> of_output, more, input, weights;  // zeros
    if (i < count) {
      of_output.load(place.of(both.first.of_output, both.second.of_output), place.at, words);
      if (addend) more.load(addend, place.at, words);
      if (norm) input.load(place.of(both.first.input, both.second.input), place.at, words);
      if (norm) weights.load(norm, place.word, words);
    }
    if (first == 0) fill_turns(args.angles, Direction::kBackward, first_token, tokens, turns, sines);
    const int angles = place.token * half + place.word * kEach;
    float gradient[2 * kEach];
    turn(of_output.first, of_output.second, turns + angles, sines + angles, [&](int e, float a, float b) {
      gradient[e] = a + more.value(e);
      gradient[kEach + e] = b + more.value(kEach + e);
    });
    if constexpr (kNorms) norm_back(gradient, input, weights, norm, block, words, args.norm_epsilon);
    if (i >= count) continue;
    Halves<Word> of_input;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      reinterpret_cast<bf16*>(&of_input.first)[e] = to_bf16(gradient[e]);
      reinterpret_cast<bf16*>(&of_input.second)[e] = to_bf16(gradient[kEach + e]);
    }
    Word* to = place.of(both.first.of_input, both.second.of_input);
    to[place.at] = of_input.first, to[place.at + words] = of_input.second;
  }
}

template <class Word>
Gradients<Word> pointers(const RopeGradients& vectors) {
  return {.of_output = words_of<Word>(vectors.output_gradient),
          .addend = words_of<Word>(vectors.addend),
          .norm = words_of<Word>(vectors.norm),
          .input = words_of<Word>(vectors.input),
          .of_input = words_of<Word>(vectors.input_gradient),
          .heads = vectors.heads};
}

bool are_words(const RopeGradients& vectors) {
  return is_aligned(vectors.output_gradient.data, 16) && is_aligned(vectors.addend.data, 16) &&
         is_aligned(vectors.norm.data, 16) && is_aligned(vectors.input.data, 16) &&
         is_aligned(vectors.input_gradient.data, 16);
}

template <class Word, bool kNorms>
void run(const RopeBackwardArgs& args) {
  const Both<Gradients<Word>> both{pointers<Word>(args.vectors[0]), pointers<Word>(args.vectors[1])};
  const Block block = block_of<Word>(args.angles, both.heads());
  launch_early(rope_backward_kernel<Word, kNorms>, ceil_div(args.angles.tokens, block.tokens), kThreads,
               turns_bytes(args.angles, block), both, args, block);
}

// With the norms' way back as kernels of their own. They read what was turned from memory of its own: where that goes
// in the end may be the norm's input.
void run_before_norms(const RopeBackwardArgs& args) {
  const auto numbers = [&](const RopeGradients& vectors) {
    return vectors.norm ? args.angles.tokens * vectors.heads * args.angles.head_dim : 0;
  };
  const Scratch<bf16> first(numbers(args.vectors[0])), second(numbers(args.vectors[1]));
  const Ref turned[] = {{first.data(), DType::kBF16}, {second.data(), DType::kBF16}};
  RopeBackwardArgs before = args;
  for (int v = 0; v < RopeArgs::kMost; ++v) {
    if (!args.vectors[v].norm) continue;
    before.vectors[v].norm = before.vectors[v].input = {};
    before.vectors[v].input_gradient = turned[v];
  }
  rope_backward(before);
  for (int v = 0; v < RopeArgs::kMost; ++v) {
    const RopeGradients& vectors = args.vectors[v];
    if (!vectors.norm) continue;
    rms_norm_backward({.output_gradient = turned[v],
                       .input = vectors.input,
                       .weight = vectors.norm,
                       .input_gradient = vectors.input_gradient,
                       .rows = args.angles.tokens * vectors.heads,
                       .width = args.angles.head_dim,
                       .epsilon = args.norm_epsilon});
  }
}

}  // namespace

void rope_backward(const RopeBackwardArgs& args) {
  check_rope(args);
  if (args.vectors[0].heads + args.vectors[1].heads == 0) return;
  switch (way_of(args.angles, args.vectors, are_words)) {
    case Way::kWords:
      return run<uint4, false>(args);
    case Way::kWordsAndNorms:
      return run<uint4, true>(args);
    case Way::kNormsApart:
      return run_before_norms(args);
    case Way::kOneByOne:
      return run<bf16, false>(args);
  }
}

}  // namespace kv::cuda
