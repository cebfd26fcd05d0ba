#include "kernels/mix_heads.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 64;  // a block, of one KV head; a constant, because the order of the sums depends on it

// A KV head's group of `words` words a token, kTokens of them a block: blocks of one KV head after the other.
struct Tiles {
  int64_t tokens;
  int64_t a_head;  // tiles
  int kv_heads, words;

  int64_t count() const { return a_head * kv_heads; }

  // Each of the block's words once, by the index that it has in the tensor.
  template <class Visit>
  __device__ void for_words(const Visit& visit) const {
    const int64_t head = blockIdx.x / a_head, first = blockIdx.x % a_head * kTokens;
    const int count = static_cast<int>(min(int64_t{kTokens}, tokens - first)) * words;
    for (int i = threadIdx.x; i < count; i += kThreads) {
      visit(((first + i / words) * kv_heads + head) * words + i % words);
    }
  }

  __device__ float share(const float* shares) const { return shares[blockIdx.x / a_head]; }
};

// A word is one value or, where all lie suitably, eight of them in 16 bytes.
template <class Word>
constexpr int kValues = sizeof(Word) / sizeof(bf16);

template <class Word>
__global__ void mix_kernel(Tiles tiles, const float* shares, const Word* first, const Word* second, Word* output) {
  let_next_start();
  wait_for_previous();
  const float share = tiles.share(shares), rest = 1 - share;
  tiles.for_words([&](int64_t word) {
    Word a = first[word];
    const Word b = second[word];
    auto* a_values = reinterpret_cast<bf16*>(&a);
    const auto* b_values = reinterpret_cast<const bf16*>(&b);
#pragma unroll
    for (int e = 0; e < kValues<Word>; ++e) {
      a_values[e] = to_bf16(share * to_f32(a_values[e]) + rest * to_f32(b_values[e]));
    }
    output[word] = a;
  });
}

template <class Word>
__global__ void slope_kernel(Tiles tiles, const float* shares, const Word* first, const Word* second,
                             const Word* output_gradient, Word* first_gradient, Word* second_gradient, double* sums) {
  const float share = tiles.share(shares), rest = 1 - share;
  double sum = 0;
  tiles.for_words([&](int64_t word) {
    Word a = first[word], b = second[word];
    const Word dy = output_gradient[word];
    auto* a_values = reinterpret_cast<bf16*>(&a);
    auto* b_values = reinterpret_cast<bf16*>(&b);
    const auto* dy_values = reinterpret_cast<const bf16*>(&dy);
#pragma unroll
    for (int e = 0; e < kValues<Word>; ++e) {
      const float slope = to_f32(dy_values[e]);
      sum += slope * (to_f32(a_values[e]) - to_f32(b_values[e]));
      a_values[e] = to_bf16(share * slope);
      b_values[e] = to_bf16(rest * slope);
    }
    first_gradient[word] = a;
    second_gradient[word] = b;
  });
  sum = block_reduce(sum, 0.0, Add());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// A block a KV head: adds up its tiles.
__global__ void share_kernel(const double* sums, int64_t tiles, float* share_gradient) {
  double sum = 0;
  for (int64_t tile = threadIdx.x; tile < tiles; tile += kThreads) sum += sums[blockIdx.x * tiles + tile];
  sum = block_reduce(sum, 0.0, Add());
  if (threadIdx.x == 0) share_gradient[blockIdx.x] += static_cast<float>(sum);
}

template <class Word, class Args>
Tiles tiles_of(const Args& args) {
  return {.tokens = args.tokens,
          .a_head = ceil_div(args.tokens, kTokens),
          .kv_heads = args.kv_heads,
          .words = args.q_heads / args.kv_heads * args.head_dim / kValues<Word>};
}

template <class Word>
const Word* words_of(ConstRef values) {
  return reinterpret_cast<const Word*>(values.as<bf16>());
}
template <class Word>
Word* words_of(Ref values) {
  return reinterpret_cast<Word*>(values.as<bf16>());
}

template <class Word>
void mix(const MixHeadsArgs& args) {
  const Tiles tiles = tiles_of<Word>(args);
  launch_early(mix_kernel<Word>, tiles.count(), kThreads, 0, tiles, args.shares, words_of<Word>(args.first),
               words_of<Word>(args.second), words_of<Word>(args.output));
}

template <class Word>
void mix_backward(const MixHeadsBackwardArgs& args) {
  const Tiles tiles = tiles_of<Word>(args);
  const Scratch<double> sums(tiles.count());
  launch(slope_kernel<Word>, tiles.count(), kThreads, 0, tiles, args.shares, words_of<Word>(args.first),
         words_of<Word>(args.second), words_of<Word>(args.output_gradient), words_of<Word>(args.first_gradient),
         words_of<Word>(args.second_gradient), sums.data());
  launch(share_kernel, args.kv_heads, kThreads, 0, sums.data(), tiles.a_head, args.share_gradient);
}

template <class Args>
bool is_wide(const Args& args) {
  return args.q_heads / args.kv_heads * args.head_dim % kValues<uint4> == 0;
}

}  // namespace

void mix_heads(const MixHeadsArgs& args) {
  KV_CHECK(args.kv_heads > 0 && args.q_heads % args.kv_heads == 0);
  const bool aligned =
      is_aligned(args.first.data, 16) && is_aligned(args.second.data, 16) && is_aligned(args.output.data, 16);
  if (aligned && is_wide(args)) {
    mix<uint4>(args);
  } else {
    mix<bf16>(args);
  }
}

void mix_heads_backward(const MixHeadsBackwardArgs& args) {
  KV_CHECK(args.kv_heads > 0 && args.q_heads % args.kv_heads == 0);
  const bool aligned = is_aligned(args.first.data, 16) && is_aligned(args.second.data, 16) &&
                       is_aligned(args.output_gradient.data, 16) && is_aligned(args.first_gradient.data, 16) &&
                       is_aligned(args.second_gradient.data, 16);
  if (aligned && is_wide(args)) {
    mix_backward<uint4>(args);
  } else {
    mix_backward<bf16>(args);
  }
}

}  // namespace kv::cuda
