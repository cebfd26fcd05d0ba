#include "kernels/occupancy.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// Powers come apart: with t = kBlock · b + r it is β_i^{t − i} = β_i^{kBlock · b − i} · β_i^r. So what a block of
// tokens leaves to the later ones is a product of matrices, [later blocks, kBlock] · [kBlock, kBlock], and its factors
// are far fewer powers than there are pairs.
constexpr int64_t kBlock = 64;
// Later blocks at a time: their factors stay in the first-level cache.
constexpr int64_t kStrip = 64;

constexpr int64_t later_age(int64_t later, int64_t i) { return kBlock * (later + 1) - i; }

// factors[b, i] = β_i^{age of i at the start of later block first + b}
void fill_factors(const float* log_beta, int64_t first, int64_t blocks, float* factors) {
  for (int64_t b = 0; b < blocks; ++b) {
#pragma omp simd
    for (int64_t i = 0; i < kBlock; ++i) {
      factors[b * kBlock + i] = fast_exp(static_cast<float>(later_age(first + b, i)) * log_beta[i]);
    }
  }
}

// Adds what a block's tokens count for, to the occupancy from the block's first token on.
void add_block(const float* log_beta, int64_t later, float* occupancy) {
  alignas(64) float powers[kBlock * kBlock], factors[kStrip * kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
#pragma omp simd
    for (int64_t r = 0; r < kBlock; ++r) powers[i * kBlock + r] = fast_exp(static_cast<float>(r) * log_beta[i]);
#pragma omp simd
    for (int64_t r = i; r < kBlock; ++r) occupancy[r] += powers[i * kBlock + r - i];
  }
  for (int64_t first = 0; first < later; first += kStrip) {
    const int64_t blocks = std::min(kStrip, later - first);
    fill_factors(log_beta, first, blocks, factors);
    gemm_nn(factors, blocks, kBlock, powers, kBlock, kBlock, kBlock, occupancy + (first + 1) * kBlock, kBlock, 1.0f,
            Write::kAdd);
  }
}

// The block's gradient; slopes begin at its first token. Its age parts as its powers do:
//   Σ_r slope · (age + r) β^{age + r} = β^age · (age · Σ_r slope · β^r + Σ_r slope · r β^r)
void add_block_gradient(const float* log_beta, int64_t later, const float* slopes, float* gradient) {
  // [r, i]: β_i^r, and beside it r β_i^r.
  alignas(64) float powers[kBlock * 2 * kBlock], sums[kStrip * 2 * kBlock], factors[kStrip * kBlock];
  for (int64_t r = 0; r < kBlock; ++r) {
    float* row = powers + r * 2 * kBlock;
    const auto age = static_cast<float>(r);
#pragma omp simd
    for (int64_t i = 0; i < kBlock; ++i) {
      row[i] = fast_exp(age * log_beta[i]);
      row[kBlock + i] = age * row[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < kBlock - r; ++i) gradient[i] += slopes[i + r] * row[kBlock + i];
  }
  for (int64_t first = 0; first < later; first += kStrip) {
    const int64_t blocks = std::min(kStrip, later - first);
    fill_factors(log_beta, first, blocks, factors);
    gemm_nn(slopes + (first + 1) * kBlock, blocks, kBlock, powers, 2 * kBlock, 2 * kBlock, kBlock, sums, 2 * kBlock);
    for (int64_t b = 0; b < blocks; ++b) {
      const float* sum = sums + b * 2 * kBlock;
#pragma omp simd
      for (int64_t i = 0; i < kBlock; ++i) {
        const auto age = static_cast<float>(later_age(first + b, i));
        gradient[i] += factors[b * kBlock + i] * (age * sum[i] + sum[kBlock + i]);
      }
    }
  }
}

// One head's numbers of a sequence, `stride` apart, as whole blocks: those beyond its end are 0, which no token that is
// there sees.
std::vector<float> in_blocks(const float* numbers, int64_t count, int64_t stride) {
  std::vector<float> padded(static_cast<size_t>(round_up(count, kBlock)));
  for (int64_t i = 0; i < count; ++i) padded[static_cast<size_t>(i)] = numbers[i * stride];
  return padded;
}

// Runs visit(layer, segment, head) for each, in parallel.
template <class Visit>
void for_heads(const TokenHeads& shape, const Visit& visit) {
  parallel_for(shape.layers * shape.segment_count * shape.heads, [&](int64_t task) {
    const int64_t head = task % shape.heads, index = task / shape.heads % shape.segment_count;
    visit(task / shape.heads / shape.segment_count, shape.segments[index], head);
  });
}

std::vector<float> occupancy_of(const std::vector<float>& log_beta) {
  const auto count = std::ssize(log_beta);
  std::vector<float> sums(log_beta.size());
  for (int64_t first = 0; first < count; first += kBlock) {
    add_block(log_beta.data() + first, (count - first) / kBlock - 1, sums.data() + first);
  }
  return sums;
}

// Adds the heads' own occupancies up, [layers · heads, tokens], in the order of heads.
void add_heads(const OccupancyArgs& args, const float* own) {
  const TokenHeads& shape = args.shape;
  const int64_t heads = shape.layers * shape.heads;
  parallel_for(shape.segment_count, [&](int64_t index) {
    const Segment segment = shape.segments[index];
    for (int64_t t = segment.first_token; t < segment.first_token + segment.count; ++t) {
      double sum = 0;
      for (int64_t head = 0; head < heads; ++head) sum += double{own[head * shape.tokens + t]};
      args.occupancy[t] += static_cast<float>(sum);
    }
  });
}

}  // namespace

void occupancy(const OccupancyArgs& args) {
  const TokenHeads& shape = args.shape;
  const bool each = args.of == OccupancyOf::kEachHead;
  const Scratch own(each ? 0 : shape.elements());
  for_heads(shape, [&](int64_t layer, const Segment& segment, int64_t head) {
    const int64_t place = shape.place(layer, segment, 0) + head;
    const std::vector<float> sums = occupancy_of(in_blocks(args.log_beta + place, segment.count, shape.heads));
    if (each) {
      for (int64_t t = 0; t < segment.count; ++t) args.occupancy[place + t * shape.heads] += sums[t];
    } else {
      std::copy_n(sums.data(), segment.count,
                  own.data() + (layer * shape.heads + head) * shape.tokens + segment.first_token);
    }
  });
  if (!each) add_heads(args, own.data());
}

void occupancy_backward(const OccupancyBackwardArgs& args) {
  const TokenHeads& shape = args.shape;
  for_heads(shape, [&](int64_t layer, const Segment& segment, int64_t head) {
    const int64_t place = shape.place(layer, segment, 0) + head;
    const std::vector<float> log_beta = in_blocks(args.log_beta + place, segment.count, shape.heads);
    const std::vector<float> slopes = args.of == OccupancyOf::kEachHead
                                          ? in_blocks(args.slopes + place, segment.count, shape.heads)
                                          : in_blocks(args.slopes + segment.first_token, segment.count, 1);
    const auto count = std::ssize(log_beta);
    std::vector<float> gradient(log_beta.size());
    for (int64_t first = 0; first < count; first += kBlock) {
      add_block_gradient(log_beta.data() + first, (count - first) / kBlock - 1, slopes.data() + first,
                         gradient.data() + first);
    }
    for (int64_t i = 0; i < segment.count; ++i) args.gradient[place + i * shape.heads] += gradient[i];
  });
}

}  // namespace kv::cpu
