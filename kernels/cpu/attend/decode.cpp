#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// probabilities[g, slot], stride `length`, of the group's query heads.
void softmax_rows(std::vector<float>& scores, int64_t group, int64_t length, float* log_sums) {
  for (int64_t g = 0; g < group; ++g) {
    float* row = scores.data() + g * length;
    const float most = largest(row, length), sum = exp_row(row, length, most), inverse = 1.0f / sum;
    if (log_sums) log_sums[g] = most + std::log(sum);
    for (int64_t slot = 0; slot < length; ++slot) row[slot] *= inverse;
  }
}

// Entries that have expired get no attention. No query is left without an entry, since it sees its own.
void hide_expired(std::vector<float>& scores, const PagedView& cache, int64_t row, int64_t group, int32_t position) {
  const int64_t length = cache.lengths[row];
  for (int64_t slot = std::max<int64_t>(0, length - cache.expiring); slot < length; ++slot) {
    if (cache.expires[pool_index(cache, row, slot)] > position) continue;
    for (int64_t g = 0; g < group; ++g) scores[g * length + slot] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void attend_decode(const AttendArgs& args, const Segment& segment, int64_t kv_head) {
  const PagedView& cache = args.cache;
  const int64_t dim = cache.head_dim;
  const int64_t group = args.q_heads / cache.kv_heads;
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + kv_head;
  const int64_t length = cache.lengths[row];
  const int64_t at = (int64_t{segment.first_token} * args.q_heads + kv_head * group) * dim;
  const float* queries = args.queries.as<float>() + at;
  float* output = args.output.as<float>() + at;
  const auto* keys = cache.keys.as<float>();
  const auto* values = cache.values.as<float>();

  std::vector<float> scores(static_cast<size_t>(group * length));
  for_page_runs(cache, row, 0, length, [&](int64_t page, int64_t place, int64_t slot, int64_t run) {
    for (int64_t i = 0; i < run; ++i) {
      const float* key = keys + (page * kPageTokens + place + i) * dim;
      for (int64_t g = 0; g < group; ++g)
        scores[g * length + slot + i] = args.scale * wide_dot(queries + g * dim, key, dim);
    }
  });
  if (cache.expires) hide_expired(scores, cache, row, group, segment.first_position);
  softmax_rows(scores, group, length, args.log_sums ? args.log_sums + at / dim : nullptr);
  std::fill_n(output, group * dim, 0.0f);
  for_page_runs(cache, row, 0, length, [&](int64_t page, int64_t place, int64_t slot, int64_t run) {
    for (int64_t g = 0; g < group; ++g) {
      float* out = output + g * dim;
      for (int64_t i = 0; i < run; ++i) {
        const float* value = values + (page * kPageTokens + place + i) * dim;
        const float probability = scores[g * length + slot + i];
#pragma omp simd
        for (int64_t d = 0; d < dim; ++d) out[d] += probability * value[d];
      }
    }
  });
  // With one query, its probabilities are the sums and the maxima.
  for (const Slots<float> columns : {args.column_sums, args.column_max}) {
    if (!columns) continue;
    for (int64_t g = 0; g < group; ++g) {
      std::copy_n(scores.data() + g * length, length, columns.row(row * group + g));
    }
  }
}

}  // namespace kv::cpu
