#include "kernels/window_attention.h"

#include <algorithm>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// Keys are gathered and multiplied in blocks that stay in the second-level cache.
constexpr int64_t kKeyBlock = 512;

// The row's window queries as [group, window, dim]: its query heads lie dim apart, its queries q_heads · dim.
void gather_queries(const WindowAttentionArgs& args, int64_t row, int group, float* out) {
  const int64_t dim = args.cache.head_dim;
  const int64_t sequence = row / args.cache.kv_heads;
  const int64_t first_head = row % args.cache.kv_heads * group;
  const float* queries = args.queries.as<float>() + sequence * args.window * args.q_heads * dim;
  for (int g = 0; g < group; ++g) {
    for (int64_t i = 0; i < args.window; ++i) {
      std::copy_n(queries + (i * args.q_heads + first_head + g) * dim, dim, out + (g * args.window + i) * dim);
    }
  }
}

// sums[j] += p[j], p = softmax of the first `visible` logits (destroyed).
void add_softmax(float* logits, int64_t visible, float weight, float* sums) {
  const float total = exp_row(logits, visible, largest(logits, visible));
  const float factor = weight / total;
#pragma omp simd
  for (int64_t j = 0; j < visible; ++j) sums[j] += logits[j] * factor;
}

void score_per_head(const WindowAttentionArgs& args, int64_t row, int group, float* logits) {
  const int64_t length = args.cache.lengths[row];
  for (int g = 0; g < group; ++g) {
    float* scores = args.scores.row(row * group + g);
    std::fill_n(scores, length, 0.0f);
    for (int64_t i = 0; i < args.window; ++i) {
      add_softmax(logits + (g * args.window + i) * length, length - args.window + i + 1,
                  1.0f / static_cast<float>(args.window), scores);
    }
  }
}

// The sums of the newest suffixes, each over its own queries: a query that is in two is added to both.
void score_suffixes(const WindowAttentionArgs& args, int64_t row, int group, float* logits) {
  const int64_t length = args.cache.lengths[row];
  for (int64_t plane = 0; plane < int64_t{args.suffix_count} * group; ++plane) {
    std::fill_n(args.scores.row(row * args.planes + plane), length, 0.0f);
  }
  for (int g = 0; g < group; ++g) {
    for (int64_t i = 0; i < args.window; ++i) {
      float* p = logits + (g * args.window + i) * length;
      const int64_t visible = length - args.window + i + 1;
      const float factor = 1.0f / exp_row(p, visible, largest(p, visible));
      for (int k = 0; k < args.suffix_count; ++k) {
        if (i < args.window - args.suffixes[k]) continue;
        float* sums = args.scores.row(row * args.planes + k * group + g);
#pragma omp simd
        for (int64_t j = 0; j < visible; ++j) sums[j] += p[j] * factor;
      }
    }
  }
}

void score_extremes(const WindowAttentionArgs& args, int64_t row, int group, float* logits) {
  const int64_t length = args.cache.lengths[row];
  for (int g = 0; g < group; ++g) {
    const auto scores_of = [&](int64_t k) { return args.scores.row(row * args.planes + k * group + g); };
    float *highest = scores_of(0), *lowest = scores_of(1), *sums = scores_of(2);
    for (int64_t i = 0; i < args.window; ++i) {
      float* p = logits + (g * args.window + i) * length;
      const int64_t visible = length - args.window + i + 1;
      const float factor = 1.0f / exp_row(p, visible, largest(p, visible));
      std::fill(p + visible, p + length, 0.0f);
      if (i == 0) {
        for (int64_t j = 0; j < length; ++j) highest[j] = lowest[j] = sums[j] = p[j] * factor;
        continue;
      }
#pragma omp simd
      for (int64_t j = 0; j < length; ++j) {
        const float probability = p[j] * factor;
        highest[j] = probability > highest[j] ? probability : highest[j];
        lowest[j] = probability < lowest[j] ? probability : lowest[j];
        sums[j] += probability;
      }
    }
  }
}

void score_group_max(const WindowAttentionArgs& args, int64_t row, int group, float* logits, int64_t older) {
  float* scores = args.scores.row(row);
  std::fill_n(scores, older, 0.0f);
  for (int64_t i = 0; i < args.window; ++i) {
    float* group_max = logits + i * older;
    for (int g = 1; g < group; ++g) {
      const float* other = logits + (g * args.window + i) * older;
#pragma omp simd
      for (int64_t j = 0; j < older; ++j) group_max[j] = other[j] > group_max[j] ? other[j] : group_max[j];
    }
    add_softmax(group_max, older, 1.0f / static_cast<float>(args.window), scores);
  }
}

void score_row(const WindowAttentionArgs& args, int64_t row) {
  const int64_t dim = args.cache.head_dim;
  const int64_t length = args.cache.lengths[row];
  const int group = args.q_heads / args.cache.kv_heads;
  KV_CHECK(args.window > 0 && args.window <= length);
  using Mode = WindowAttentionArgs::Mode;
  const int64_t columns = args.mode == Mode::kGroupMaxOlder ? length - args.window : length;
  if (columns == 0) return;

  const int64_t queries = group * args.window;
  const Scratch packed(queries * dim), keys(std::min(columns, kKeyBlock) * dim), logits(queries * columns);
  gather_queries(args, row, group, packed.data());
  for (int64_t first = 0; first < columns; first += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, columns - first);
    gather_keys(args.cache, row, first, count, keys.data());
    gemm_nt(packed.data(), queries, dim, keys.data(), count, dim, dim, logits.data() + first, columns, args.scale);
  }
  switch (args.mode) {
    case Mode::kPerQueryHead:
      return score_per_head(args, row, group, logits.data());
    case Mode::kGroupMaxOlder:
      return score_group_max(args, row, group, logits.data(), columns);
    case Mode::kSuffixSums:
      return score_suffixes(args, row, group, logits.data());
    case Mode::kExtremes:
      return score_extremes(args, row, group, logits.data());
  }
}

}  // namespace

void window_attention(const WindowAttentionArgs& args) {
  KV_CHECK(args.q_heads % args.cache.kv_heads == 0);
  check_planes(args);
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) score_row(args, row);
  });
}

}  // namespace kv::cpu
