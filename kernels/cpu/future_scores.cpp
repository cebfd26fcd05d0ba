#include "kernels/future_scores.h"

#include <algorithm>

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

void score_row(const FutureScoresArgs& args, int64_t row) {
  const int64_t length = args.cache.lengths[row];
  float* scores = args.scores.row(row);
  const int64_t block = args.from_block[row / args.cache.kv_heads];
  if (block < 0 || block >= args.blocks) {
    std::fill_n(scores, length, 0.0f);
    return;
  }
  const float* table = args.table + (row * args.blocks + block) * args.tokens;
  for_page_runs(args.cache, row, 0, length, [&](int64_t page, int64_t place, int64_t done, int64_t run) {
    const int32_t* positions = args.cache.positions + page * kPageTokens + place;
    for (int64_t i = 0; i < run; ++i) {
      KV_CHECK(positions[i] >= 0 && positions[i] < args.tokens);
      scores[done + i] = table[positions[i]];
    }
  });
}

void take_larger(const float* other, float* values, int64_t count) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) values[j] = other[j] > values[j] ? other[j] : values[j];
}

// One merged block: the `count` statistics rows from `input` on, summed or maximised, times scale.
void merge_blocks(const FutureTableArgs& args, const float* input, int64_t count, float* output) {
  std::copy_n(input, args.tokens, output);
  for (int64_t b = 1; b < count; ++b) {
    const float* next = input + b * args.tokens;
    if (args.combine == FutureTableArgs::Combine::kSum) {
#pragma omp simd
      for (int64_t j = 0; j < args.tokens; ++j) output[j] += next[j];
    } else {
      take_larger(next, output, args.tokens);
    }
  }
#pragma omp simd
  for (int64_t j = 0; j < args.tokens; ++j) output[j] *= args.scale;
}

void tabulate_head(const FutureTableArgs& args, int64_t head) {
  const int64_t merged = (args.blocks + args.merge - 1) / args.merge;
  const float* input = args.input + head * args.blocks * args.tokens;
  float* output = args.output + head * merged * args.tokens;
  for (int64_t b = 0; b < merged; ++b) {
    const int64_t first = b * args.merge;
    merge_blocks(args, input + first * args.tokens, std::min<int64_t>(args.merge, args.blocks - first),
                 output + b * args.tokens);
  }
  if (args.horizon <= 0) {
    for (int64_t b = merged - 2; b >= 0; --b) {
      take_larger(output + (b + 1) * args.tokens, output + b * args.tokens, args.tokens);
    }
    return;
  }
  // In place from the front: block b only needs later blocks, which still hold their own values.
  for (int64_t b = 0; b < merged; ++b) {
    for (int64_t later = b + 1; later < std::min(merged, b + args.horizon); ++later) {
      take_larger(output + later * args.tokens, output + b * args.tokens, args.tokens);
    }
  }
}

}  // namespace

void future_scores(const FutureScoresArgs& args) {
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) score_row(args, row);
  });
}

void future_table(const FutureTableArgs& args) {
  KV_CHECK(args.merge > 0);
  parallel_for(args.heads, [&](int64_t head) { tabulate_head(args, head); });
}

}  // namespace kv::cpu
