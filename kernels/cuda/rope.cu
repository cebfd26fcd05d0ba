#include "kernels/rope.h"

#include <type_traits>

#include "kernels/cuda/device.cuh"

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

// A block has some tokens, whose angles it takes once for all heads, a thread an angle; meanwhile the first words are
// on their way. Each thread writes the places it has read, so that the output may be the input.
template <class Word>
__global__ void __launch_bounds__(kThreads, 5)
    rope_kernel(const Word* input, Word* output, RopeArgs args, Block block) {
  extern __shared__ __align__(16) float turns[];  // cosines by token, then sines
  let_next_start();
  wait_for_previous();
  const int half = args.head_dim / 2, words = half / kValues<Word>;  // of half a vector
  const int64_t token = int64_t{blockIdx.x} * block.tokens;
  const int tokens = static_cast<int>(min(int64_t{block.tokens}, args.tokens - token));
  const int count = tokens * args.heads * words;
  float* sines = turns + block.tokens * half;
  input += token * args.heads * 2 * words;
  output += token * args.heads * 2 * words;
  const auto place = [&](int i) { return i + block.by_words(i) * words; };  // of a word of the first halves
  for (int first = 0; first < count; first += kThreads * kTogether) {
    Word held[kTogether][2];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * kThreads + static_cast<int>(threadIdx.x), at = place(i);
      if (i < count) held[k][0] = input[at], held[k][1] = input[at + words];
    }
    if (first == 0) {
      // Back is the turn by −angle, whose sine is the other way round.
      const float factor = args.attention_factor;
      const float sine_factor = args.direction == RopeDirection::kBackward ? -factor : factor;
#pragma unroll 1
      for (int i = threadIdx.x; i < tokens * half; i += kThreads) {
        // Not contracted into a fused operation, and with the full range reduction: positions reach 500,000.
        const float angle = __fmul_rn(static_cast<float>(args.positions[token + i / half]), args.inv_freq[i % half]);
        float sine, cosine;
        sincosf(angle, &sine, &cosine);
        turns[i] = factor * cosine;
        sines[i] = sine_factor * sine;
      }
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = first + k * kThreads + static_cast<int>(threadIdx.x), at = place(i);
      if (i >= count) break;
      const int vector = block.by_words(i);
      const int angles = block.by_heads(vector) * half + (i - vector * words) * kValues<Word>;
      turn(held[k][0], held[k][1], turns + angles, sines + angles);
      output[at] = held[k][0], output[at + words] = held[k][1];
    }
  }
}

template <class Word>
void run(const RopeArgs& args) {
  const int half = args.head_dim / 2;
  // Enough tokens for an angle a thread, but no fewer blocks than keep all multiprocessors busy.
  const int64_t spread = ceil_div(args.tokens, int64_t{2} * multiprocessors());
  const int tokens = std::max(1, static_cast<int>(std::min<int64_t>(kThreads / half, spread))),
            words = half / kValues<Word>;
  KV_CHECK(int64_t{tokens} * args.heads * words * std::max(words, args.heads) < int64_t{1} << 32);
  const Block block{.tokens = tokens, .by_words = Quotient(words), .by_heads = Quotient(args.heads)};
  launch_early(rope_kernel<Word>, ceil_div(args.tokens, tokens), kThreads, size_t{2} * tokens * half * sizeof(float),
               reinterpret_cast<const Word*>(args.input.as<bf16>()), reinterpret_cast<Word*>(args.output.as<bf16>()),
               args, block);
}

}  // namespace

void rope(const RopeArgs& args) {
  KV_CHECK(args.head_dim > 0 && args.head_dim % 2 == 0 && args.heads > 0);
  const bool aligned = is_aligned(args.input.as<bf16>(), 16) && is_aligned(args.output.as<bf16>(), 16);
  if (aligned && args.head_dim % 16 == 0) {
    run<uint4>(args);
  } else {
    run<bf16>(args);
  }
}

}  // namespace kv::cuda
