#pragma once

#include <algorithm>
#include <bit>

#include "kernels/cuda/device.cuh"
#include "kernels/rope.h"

// What turning queries and keys, and their gradients back, has in common: a block has some tokens, whose angles it
// takes once for all heads; a thread has a word of a head's first half and the same of its second. Each thread writes
// the places it has read, so that the output may be the input.

namespace kv::cuda {

namespace turning {

constexpr int kThreads = 256;

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

// Queries and keys, as `Vectors` has either's pointers and heads.
template <class Vectors>
struct Both {
  Vectors first, second;
  __host__ __device__ int heads() const { return first.heads + second.heads; }
};

// Where a thread's word of a first half is, and the other half's behind it.
struct Place {
  template <class Vectors>
  __device__ Place(const Both<Vectors>& both, const Block& block, int64_t first_token, int words, int i) {
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

// A word of each half, turned by as many angles: values(e, a, b) is called with what the e-th become, whose place they
// may take.
template <class Word, class Values>
__device__ void turn(const Word& first, const Word& second, const float* cosines, const float* sines,
                     const Values& values) {
  const auto* as = reinterpret_cast<const bf16*>(&first);
  const auto* bs = reinterpret_cast<const bf16*>(&second);
  float cosine[kValues<Word>], sine[kValues<Word>];
  load_numbers<Word>(cosines, cosine);
  load_numbers<Word>(sines, sine);
#pragma unroll
  for (int e = 0; e < kValues<Word>; ++e) {
    const float a = to_f32(as[e]), b = to_f32(bs[e]);
    values(e, a * cosine[e] - b * sine[e], b * cosine[e] + a * sine[e]);
  }
}

enum class Direction { kForward, kBackward };

// Cosines and sines of the angles of so many tokens, a thread an angle. Back is the turn by −angle, whose sine is the
// other way round.
__device__ inline void fill_turns(const RopeAngles& angles, Direction direction, int64_t first_token, int tokens,
                                  float* cosines, float* sines) {
  const int half = angles.head_dim / 2;
  const float factor = angles.attention_factor, sine_factor = direction == Direction::kBackward ? -factor : factor;
#pragma unroll 1
  for (auto i = static_cast<int>(threadIdx.x); i < tokens * half; i += kThreads) {
    // Not contracted into a fused operation, and with the full range reduction: positions reach 500,000.
    const float angle =
        __fmul_rn(static_cast<float>(angles.positions[first_token + i / half]), angles.inv_freq[i % half]);
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    cosines[i] = factor * cosine;
    sines[i] = sine_factor * sine;
  }
  __syncthreads();
}

// A sum over a head, whose words the lanes beside this one have: as many as make a power of two.
__device__ inline float head_sum(float sum, int words) {
  for (int across = 1; across < words; across *= 2) sum += __shfl_xor_sync(kWarp, sum, across);
  return sum;
}

// By what a thread's words are: eight values each, or, of vectors that do not lie so, one; with norms or without. Of
// those whose lanes would be no part of a warp, a norm takes a kernel of its own.
enum class Way { kWords, kWordsAndNorms, kNormsApart, kOneByOne };
template <class Vectors, class AreWords>
Way way_of(const RopeAngles& angles, const Vectors (&vectors)[RopeArgs::kMost], const AreWords& are_words) {
  const bool is_wide = angles.head_dim % 16 == 0 && std::ranges::all_of(vectors, are_words);
  const auto has_norm = [](const Vectors& of) { return static_cast<bool>(of.norm); };
  if (!std::ranges::any_of(vectors, has_norm)) return is_wide ? Way::kWords : Way::kOneByOne;
  const bool fits_a_warp =
      std::has_single_bit(static_cast<unsigned>(angles.head_dim)) && angles.head_dim <= 2 * kValues<uint4> * 32;
  return is_wide && fits_a_warp ? Way::kWordsAndNorms : Way::kNormsApart;
}

template <class Word>
inline Block block_of(const RopeAngles& angles, int heads) {
  const int half = angles.head_dim / 2, words = half / kValues<Word>;
  // Enough tokens for an angle a thread, but no fewer blocks than keep all multiprocessors busy.
  const int64_t spread = ceil_div(angles.tokens, int64_t{2} * multiprocessors());
  const int tokens = std::max(1, static_cast<int>(std::min<int64_t>(kThreads / half, spread)));
  KV_CHECK(int64_t{tokens} * heads * words * std::max(words, heads) < int64_t{1} << 32);
  return {.tokens = tokens,
          .by_words = Quotient(words),
          .by_heads = Quotient(heads),
          .inverse_dim = 1.0f / static_cast<float>(angles.head_dim)};
}

inline size_t turns_bytes(const RopeAngles& angles, const Block& block) {
  return sizeof(float) * static_cast<size_t>(block.tokens) * static_cast<size_t>(angles.head_dim);
}

template <class Word>
const Word* words_of(ConstRef ref) {
  return ref.data ? reinterpret_cast<const Word*>(ref.as<bf16>()) : nullptr;
}
template <class Word>
Word* words_of(Ref ref) {
  return ref.data ? reinterpret_cast<Word*>(ref.as<bf16>()) : nullptr;
}

}  // namespace turning

}  // namespace kv::cuda
