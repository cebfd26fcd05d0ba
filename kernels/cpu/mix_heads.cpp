#include "kernels/mix_heads.h"

#include <algorithm>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// Of one token: its KV heads' groups lie one after the other, `width` values each.
struct Groups {
  template <class Args>
  explicit Groups(const Args& args) : heads(args.kv_heads) {
    KV_CHECK(args.kv_heads > 0 && args.q_heads % args.kv_heads == 0);
    width = int64_t{args.q_heads / args.kv_heads} * args.head_dim;
  }

  // About 16k values. A constant, because the order of the sums depends on it.
  int64_t tokens_a_task() const { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, heads * width)); }

  int64_t heads, width = 0;
};

}  // namespace

void mix_heads(const MixHeadsArgs& args) {
  const auto* one = args.first.as<float>();
  const auto* other = args.second.as<float>();
  auto* output = args.output.as<float>();
  const Groups groups(args);
  parallel_blocks(args.tokens, groups.tokens_a_task(), [&](int64_t first, int64_t end) {
    for (int64_t group = first * groups.heads; group < end * groups.heads; ++group) {
      const float share = args.shares[group % groups.heads], rest = 1 - share;
#pragma omp simd
      for (int64_t i = group * groups.width; i < (group + 1) * groups.width; ++i) {
        output[i] = share * one[i] + rest * other[i];
      }
    }
  });
}

void mix_heads_backward(const MixHeadsBackwardArgs& args) {
  const auto* one = args.first.as<float>();
  const auto* other = args.second.as<float>();
  const auto* output_gradient = args.output_gradient.as<float>();
  auto* first_gradient = args.first_gradient.as<float>();
  auto* second_gradient = args.second_gradient.as<float>();
  const Groups groups(args);
  const int64_t block = groups.tokens_a_task(), blocks = (args.tokens + block - 1) / block;
  std::vector<double> sums(static_cast<size_t>(blocks * groups.heads));
  parallel_blocks(args.tokens, block, [&](int64_t first, int64_t end) {
    double* block_sums = sums.data() + first / block * groups.heads;
    for (int64_t group = first * groups.heads; group < end * groups.heads; ++group) {
      const int64_t head = group % groups.heads, start = group * groups.width;
      const float share = args.shares[head], rest = 1 - share;
      block_sums[head] += sum_of<double>(groups.width, [=](int64_t i) {
        return double{output_gradient[start + i]} * (double{one[start + i]} - double{other[start + i]});
      });
#pragma omp simd
      for (int64_t i = start; i < start + groups.width; ++i) {
        const float dy = output_gradient[i];
        first_gradient[i] = share * dy;
        second_gradient[i] = rest * dy;
      }
    }
  });
  for (int64_t head = 0; head < groups.heads; ++head) {
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += sums[b * groups.heads + head];
    args.share_gradient[head] += static_cast<float>(sum);
  }
}

}  // namespace kv::cpu
