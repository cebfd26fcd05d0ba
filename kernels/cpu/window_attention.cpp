#include "kernels/window_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// Keys are gathered and multiplied in blocks that stay in the second-level cache.
constexpr int64_t kKeyBlock = 512;

// Vectors of logits, one a query and query head, that are held at a time, so that a long window takes no more memory
// than a short one.
constexpr int64_t kHeldVectors = 128;

// Some of the window's queries and their logits. A query's number is that in the window.
struct Slice {
  const WindowAttentionArgs& args;
  int64_t row;
  int64_t group;
  int64_t columns;  // slots that take part
  int64_t first;    // query
  int64_t count;    // of queries
  float* logits;    // [group, count, columns]

  int64_t end() const { return first + count; }
  float* vector(int64_t g, int64_t query) const { return logits + (g * count + query - first) * columns; }
  int64_t visible(int64_t query) const { return columns - args.window + query + 1; }  // where all slots take part
};

// Queries [first, first + count) of the row's window as [group, count, dim]: its query heads lie dim apart, its queries
// q_heads · dim.
void gather_queries(const Slice& slice, float* out) {
  const WindowAttentionArgs& args = slice.args;
  const int64_t dim = args.cache.head_dim;
  const int64_t sequence = slice.row / args.cache.kv_heads;
  const int64_t first_head = slice.row % args.cache.kv_heads * slice.group;
  const auto* queries = args.queries.as<float>();
  for (int64_t g = 0; g < slice.group; ++g) {
    for (int64_t i = slice.first; i < slice.end(); ++i, out += dim) {
      std::copy_n(queries + (query_row(args, sequence, i) * args.q_heads + first_head + g) * dim, dim, out);
    }
  }
}

// The first `visible` logits of a query become its probabilities among all that it saw.
void make_probabilities(const Slice& slice, int64_t g, int64_t query, float* logits, int64_t visible) {
  const WindowAttentionArgs& args = slice.args;
  const int64_t sequence = slice.row / args.cache.kv_heads, head = slice.row % args.cache.kv_heads * slice.group + g;
  exp_row(logits, visible, args.log_sums[query_row(args, sequence, query) * args.q_heads + head]);
}

// sums[j] += p[j], p = softmax of the first `visible` logits (destroyed).
void add_softmax(float* logits, int64_t visible, float weight, float* sums) {
  const float total = exp_row(logits, visible, largest(logits, visible));
  const float factor = weight / total;
#pragma omp simd
  for (int64_t j = 0; j < visible; ++j) sums[j] += logits[j] * factor;
}

void score_per_head(const Slice& slice) {
  const WindowAttentionArgs& args = slice.args;
  for (int64_t g = 0; g < slice.group; ++g) {
    float* scores = args.scores.row(slice.row * slice.group + g);
    if (slice.first == 0) std::fill_n(scores, slice.columns, 0.0f);
    for (int64_t i = slice.first; i < slice.end(); ++i) {
      add_softmax(slice.vector(g, i), slice.visible(i), 1.0f / static_cast<float>(args.window), scores);
    }
  }
}

// What the query cannot see any more, but what comes after all that it sees.
void hide_expired(const Slice& slice, int64_t query, float* logits) {
  const WindowAttentionArgs& args = slice.args;
  if (!args.newest_positions) return;
  const int64_t position = args.newest_positions[slice.row / args.cache.kv_heads] - (args.window - 1 - query);
  for (int64_t j = std::max(int64_t{0}, slice.columns - args.cache.expiring); j < slice.visible(query); ++j) {
    if (args.cache.expires[pool_index(args.cache, slice.row, j)] <= position) logits[j] = -INFINITY;
  }
}

// The sums of the newest suffixes, each over its own queries: a query that is in two is added to both.
void score_suffixes(const Slice& slice) {
  const WindowAttentionArgs& args = slice.args;
  const int32_t* suffixes = args.suffixes + slice.row / args.cache.kv_heads * args.suffix_count;
  const int64_t oldest = args.window - *std::max_element(suffixes, suffixes + args.suffix_count);
  for (int64_t plane = 0; slice.first == 0 && plane < args.suffix_count * slice.group; ++plane) {
    std::fill_n(args.scores.row(slice.row * args.planes + plane), slice.columns, 0.0f);
  }
  for (int64_t g = 0; g < slice.group; ++g) {
    for (int64_t i = std::max(slice.first, oldest); i < slice.end(); ++i) {
      float* p = slice.vector(g, i);
      const int64_t visible = slice.visible(i);
      KV_CHECK(visible > 0);
      hide_expired(slice, i, p);
      make_probabilities(slice, g, i, p, visible);
      for (int k = 0; k < args.suffix_count; ++k) {
        if (i < args.window - suffixes[k]) continue;
        float* sums = args.scores.row(slice.row * args.planes + k * slice.group + g);
#pragma omp simd
        for (int64_t j = 0; j < visible; ++j) sums[j] += p[j];
      }
    }
  }
}

void score_extremes(const Slice& slice) {
  const WindowAttentionArgs& args = slice.args;
  const int64_t length = slice.columns;
  for (int64_t g = 0; g < slice.group; ++g) {
    const auto scores_of = [&](int64_t k) { return args.scores.row(slice.row * args.planes + k * slice.group + g); };
    float *highest = scores_of(0), *lowest = scores_of(1), *sums = scores_of(2);
    for (int64_t i = slice.first; i < slice.end(); ++i) {
      float* p = slice.vector(g, i);
      const int64_t visible = slice.visible(i);
      make_probabilities(slice, g, i, p, visible);
      std::fill(p + visible, p + length, 0.0f);
      if (i == 0) {
        for (int64_t j = 0; j < length; ++j) highest[j] = lowest[j] = sums[j] = p[j];
        continue;
      }
#pragma omp simd
      for (int64_t j = 0; j < length; ++j) {
        highest[j] = p[j] > highest[j] ? p[j] : highest[j];
        lowest[j] = p[j] < lowest[j] ? p[j] : lowest[j];
        sums[j] += p[j];
      }
    }
  }
}

void score_group_max(const Slice& slice) {
  float* scores = slice.args.scores.row(slice.row);
  if (slice.first == 0) std::fill_n(scores, slice.columns, 0.0f);
  for (int64_t i = slice.first; i < slice.end(); ++i) {
    float* group_max = slice.vector(0, i);
    for (int64_t g = 1; g < slice.group; ++g) {
      const float* other = slice.vector(g, i);
#pragma omp simd
      for (int64_t j = 0; j < slice.columns; ++j) group_max[j] = other[j] > group_max[j] ? other[j] : group_max[j];
    }
    add_softmax(group_max, slice.columns, 1.0f / static_cast<float>(slice.args.window), scores);
  }
}

// The mean's weight is in the heads' factors: what is largest stays so.
void score_group_max_probability(const Slice& slice) {
  float* scores = slice.args.scores.row(slice.row);
  if (slice.first == 0) std::fill_n(scores, slice.columns, 0.0f);
  for (int64_t i = slice.first; i < slice.end(); ++i) {
    float* group_max = slice.vector(0, i);
    for (int64_t g = 0; g < slice.group; ++g) {
      float* p = slice.vector(g, i);
      const float total = exp_row(p, slice.columns, largest(p, slice.columns));
      const float factor = 1.0f / (total * static_cast<float>(slice.args.window));
#pragma omp simd
      for (int64_t j = 0; j < slice.columns; ++j) {
        const float share = p[j] * factor;
        group_max[j] = g == 0 || share > group_max[j] ? share : group_max[j];
      }
    }
#pragma omp simd
    for (int64_t j = 0; j < slice.columns; ++j) scores[j] += group_max[j];
  }
}

void find_logits(const Slice& slice, float* queries, float* keys) {
  const PagedView& cache = slice.args.cache;
  const int64_t dim = cache.head_dim;
  gather_queries(slice, queries);
  for (int64_t first = 0; first < slice.columns; first += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, slice.columns - first);
    gather_keys(cache, slice.row, first, count, keys);
    gemm_nt(queries, slice.group * slice.count, dim, keys, count, dim, dim, slice.logits + first, slice.columns,
            slice.args.scale);
  }
}

void add_scores(const Slice& slice) {
  using Mode = WindowAttentionArgs::Mode;
  switch (slice.args.mode) {
    case Mode::kPerQueryHead:
      return score_per_head(slice);
    case Mode::kGroupMaxOlder:
      return score_group_max(slice);
    case Mode::kGroupMaxProbabilityOlder:
      return score_group_max_probability(slice);
    case Mode::kSuffixSums:
      return score_suffixes(slice);
    case Mode::kExtremes:
      return score_extremes(slice);
  }
}

void score_row(const WindowAttentionArgs& args, int64_t row) {
  const int64_t dim = args.cache.head_dim, length = args.cache.lengths[row], window = args.window;
  const int64_t group = args.q_heads / args.cache.kv_heads;
  KV_CHECK(window > 0 && (window <= length || args.mode == WindowAttentionArgs::Mode::kSuffixSums));
  const int64_t columns = is_group_max(args.mode) ? length - window : length;
  if (columns == 0) return;

  const int64_t queries = std::min(window, std::max(int64_t{1}, kHeldVectors / group));
  const Scratch packed(group * queries * dim), keys(std::min(columns, kKeyBlock) * dim),
      logits(group * queries * columns);
  for (int64_t first = 0; first < window; first += queries) {
    const Slice slice{.args = args,
                      .row = row,
                      .group = group,
                      .columns = columns,
                      .first = first,
                      .count = std::min(queries, window - first),
                      .logits = logits.data()};
    find_logits(slice, packed.data(), keys.data());
    add_scores(slice);
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
