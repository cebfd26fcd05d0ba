#include "kernels/rope.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/inverse_rms.cuh"
#include "kernels/rms_norm.h"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTogether = 2;  // words of either half that a thread has on the way

// i / by as a product, where i · by < 2^32: quotients of numbers that only a launch knows take longer than to turn.
struct Quotient {
  uint64_t factor;
  explicit Quotient(int by) : factor((uint64_t{1} << 32) / static_cast<uint64_t>(by) + 1) {}
  __device__ int operator()(int i) const { return static_cast<int>(static_cast<uint32_t>(i) * factor >> 32); }
};

struct Block {
  int tokens;  // but of the last, which may have fewer
  Quotient by_words, by_heads;
  float inverse_dim;
};

// Eight values, or one.
template <class Word>
inline constexpr int kValues = sizeof(Word) / sizeof(bf16);

// Numbers of a word, in words of their own where it has several.
template <class Word>
__device__ void load_numbers(const float* from, float (&numbers)[kValues<Word>]) {
  if constexpr (kValues<Word> == 1) {
    numbers[0] = *from;
  } else {
#pragma unroll
    for (int e = 0; e < kValues<Word>; e += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + e);
      numbers[e] = four.x, numbers[e + 1] = four.y, numbers[e + 2] = four.z, numbers[e + 3] = four.w;
    }
  }
}

// A word of each half, turned by as many angles.
template <class Word>
__device__ void turn(Word& first, Word& second, const float* cosines, const float* sines) {
  auto* as = reinterpret_cast<bf16*>(&first);
  auto* bs = reinterpret_cast<bf16*>(&second);
  float cosine[kValues<Word>], sine[kValues<Word>];
  load_numbers<Word>(cosines, cosine);
  load_numbers<Word>(sines, sine);
#pragma unroll
  for (int e = 0; e < kValues<Word>; ++e) {
    const float a = to_f32(as[e]), b = to_f32(bs[e]);
    as[e] = to_bf16(a * cosine[e] - b * sine[e]);
    bs[e] = to_bf16(b * cosine[e] + a * sine[e]);
  }
}

// A RopeVectors, or none, in words.
template <class Word>
struct Vectors {
  const Word* input = nullptr;
  const Word* norm = nullptr;
  Word* normed = nullptr;
  Word* output = nullptr;
  int heads = 0;
};

template <class Word>
struct Both {
  Vectors<Word> first, second;
  __host__ __device__ int heads() const { return first.heads + second.heads; }
};

// Where a thread's word of a first half is, and the other half's behind it.
template <class Word>
struct Place {
  __device__ Place(const Both<Word>& both, const Block& block, int64_t first_token, int words, int i) {
    const int vector = block.by_words(i);
    token = block.by_heads(vector);
    word = i - vector * words;
    const int head = vector - token * both.heads();
    of_second = head >= both.first.heads;
    const int heads = of_second ? both.second.heads : both.first.heads;
    at = ((first_token + token) * heads + (of_second ? head - both.first.heads : head)) * 2 * words + word;
  }
  // Of the vectors that it belongs to.
  template <class Pointer>
  __device__ Pointer of(Pointer first, Pointer second) const {
    return of_second ? second : first;
  }

  int token, word;  // of the block, of the half
  bool of_second;
  int64_t at;
};

// What the norm makes of a head, whose words the lanes beside this one have: as many as make a power of two.
__device__ void norm_head(uint4 (&held)[2], const uint4 (&weights_held)[2], bool has_norm, const Block& block,
                          int words, float epsilon) {
  auto* values = reinterpret_cast<bf16*>(held);
  float sum = 0;
#pragma unroll
  for (int e = 0; e < 16; ++e) sum += to_f32(values[e]) * to_f32(values[e]);
  for (int across = 1; across < words; across *= 2) sum += __shfl_xor_sync(kWarp, sum, across);
  if (!has_norm) return;
  const float scale = inverse_rms(sum, block.inverse_dim, epsilon);
  const auto* weights = reinterpret_cast<const bf16*>(weights_held);
#pragma unroll
  for (int e = 0; e < 16; ++e) values[e] = to_bf16(to_f32(values[e]) * scale * to_f32(weights[e]));
}

// Cosines and sines of the angles of so many tokens, a thread an angle.
__device__ void fill_turns(const RopeArgs& args, int64_t first_token, int tokens, float* cosines, float* sines) {
  const int half = args.head_dim / 2;
  // Back is the turn by −angle, whose sine is the other way round.
  const float factor = args.attention_factor;
  const float sine_factor = args.direction == RopeDirection::kBackward ? -factor : factor;
#pragma unroll 1
  for (auto i = static_cast<int>(threadIdx.x); i < tokens * half; i += kThreads) {
    // Not contracted into a fused operation, and with the full range reduction: positions reach 500,000.
    const float angle = __fmul_rn(static_cast<float>(args.positions[first_token + i / half]), args.inv_freq[i % half]);
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    cosines[i] = factor * cosine;
    sines[i] = sine_factor * sine;
  }
  __syncthreads();
}

// A block has some tokens, whose angles it takes once for all heads: that of a single token, as a step's are, while the
// kernel before it is still at work, others while the first words are on their way. Each thread writes the places it
// has read, so that the output may be the input.
template <class Word, bool kNorms>
__global__ void __launch_bounds__(kThreads, kNorms ? 4 : 5) rope_kernel(Both<Word> both, RopeArgs args, Block block) {
  extern __shared__ __align__(16) float turns[];                     // cosines by token, then sines
  const int half = args.head_dim / 2, words = half / kValues<Word>;  // of half a vector
  const int64_t first_token = int64_t{blockIdx.x} * block.tokens;
  const int tokens = static_cast<int>(min(int64_t{block.tokens}, args.tokens - first_token));
  const int count = tokens * both.heads() * words;
  float* sines = turns + block.tokens * half;
  const auto place_of = [&](int i) { return Place<Word>(both, block, first_token, words, i); };
  const bool has_one_token = block.tokens == 1;
  let_next_start();
  if (has_one_token) fill_turns(args, first_token, tokens, turns, sines);
  wait_for_previous();
  for (int first = 0; first < count; first += kThreads * kTogether) {
    Word held[kTogether][2], weights[kNorms ? kTogether : 1][2];  // the norm's, on their way with what they scale
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * kThreads + static_cast<int>(threadIdx.x);
      held[k][0] = held[k][1] = Word{};
      if (i >= count) continue;
      const Place<Word> place = place_of(i);
      const Word* input = place.of(both.first.input, both.second.input);
      held[k][0] = input[place.at], held[k][1] = input[place.at + words];
      if constexpr (kNorms) {
        const Word* norm = place.of(both.first.norm, both.second.norm);
        if (norm) weights[k][0] = norm[place.word], weights[k][1] = norm[place.word + words];
      }
    }
    if (first == 0 && !has_one_token) fill_turns(args, first_token, tokens, turns, sines);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * kThreads + static_cast<int>(threadIdx.x);
      const Place<Word> place = place_of(min(i, count - 1));
      if constexpr (kNorms) {
        const bool has_norm = place.of(both.first.norm, both.second.norm) != nullptr;
        norm_head(held[k], weights[k], has_norm, block, words, args.norm_epsilon);
        Word* normed = place.of(both.first.normed, both.second.normed);
        if (i < count && has_norm) normed[place.at] = held[k][0], normed[place.at + words] = held[k][1];
      }
      if (i >= count) continue;
      const int angles = place.token * half + place.word * kValues<Word>;
      turn(held[k][0], held[k][1], turns + angles, sines + angles);
      Word* output = place.of(both.first.output, both.second.output);
      output[place.at] = held[k][0], output[place.at + words] = held[k][1];
    }
  }
}

template <class Word>
Vectors<Word> words_of(const RopeVectors& vectors) {
  const auto words = [](const auto& ref) { return ref.data ? ref.template as<bf16>() : nullptr; };
  return {.input = reinterpret_cast<const Word*>(words(vectors.input)),
          .norm = reinterpret_cast<const Word*>(words(vectors.norm)),
          .normed = reinterpret_cast<Word*>(words(vectors.normed)),
          .output = reinterpret_cast<Word*>(words(vectors.output)),
          .heads = vectors.heads};
}

bool are_words(const RopeVectors& vectors) {
  return is_aligned(vectors.input.data, 16) && is_aligned(vectors.norm.data, 16) &&
         is_aligned(vectors.normed.data, 16) && is_aligned(vectors.output.data, 16);
}

template <class Word, bool kNorms>
void run(const RopeArgs& args) {
  const Both<Word> both{words_of<Word>(args.vectors[0]), words_of<Word>(args.vectors[1])};
  const int half = args.head_dim / 2, heads = both.heads();
  // Enough tokens for an angle a thread, but no fewer blocks than keep all multiprocessors busy.
  const int64_t spread = ceil_div(args.tokens, int64_t{2} * multiprocessors());
  const int tokens = std::max(1, static_cast<int>(std::min<int64_t>(kThreads / half, spread))),
            words = half / kValues<Word>;
  KV_CHECK(int64_t{tokens} * heads * words * std::max(words, heads) < int64_t{1} << 32);
  const Block block{.tokens = tokens,
                    .by_words = Quotient(words),
                    .by_heads = Quotient(heads),
                    .inverse_dim = 1.0f / static_cast<float>(args.head_dim)};
  launch_early(rope_kernel<Word, kNorms>, ceil_div(args.tokens, tokens), kThreads,
               size_t{2} * tokens * half * sizeof(float), both, args, block);
}

// Of vectors whose lanes would be no part of a warp, the norm is a kernel of its own.
RopeArgs after_norms(const RopeArgs& args) {
  RopeArgs after = args;
  for (RopeVectors& vectors : after.vectors) {
    if (!vectors.norm) continue;
    rms_norm({.input = vectors.input,
              .weight = vectors.norm,
              .output = vectors.normed,
              .rows = args.tokens * vectors.heads,
              .width = args.head_dim,
              .epsilon = args.norm_epsilon});
    vectors.input = vectors.normed;
    vectors.norm = {};
  }
  return after;
}

}  // namespace

void rope(const RopeArgs& args) {
  const auto has_norm = [](const RopeVectors& vectors) { return static_cast<bool>(vectors.norm); };
  KV_CHECK(args.head_dim > 0 && args.head_dim % 2 == 0);
  check_vectors(args);
  if (args.vectors[0].heads + args.vectors[1].heads == 0) return;
  const bool is_wide = args.head_dim % 16 == 0 && std::ranges::all_of(args.vectors, are_words);
  const bool is_a_power = std::has_single_bit(static_cast<unsigned>(args.head_dim)) && args.head_dim <= 512;
  if (!std::ranges::any_of(args.vectors, has_norm)) {
    is_wide ? run<uint4, false>(args) : run<bf16, false>(args);
  } else if (is_wide && is_a_power) {
    run<uint4, true>(args);
  } else {
    rope(after_norms(args));
  }
}

}  // namespace kv::cuda
