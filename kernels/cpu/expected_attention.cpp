#include "kernels/expected_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/eigen.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

void add_moments(const QueryMomentsArgs& args, const Segment& segment, int64_t head) {
  const int64_t dim = args.head_dim;
  const int64_t skipped = std::max<int64_t>(0, int64_t{args.first_position} - segment.first_position);
  const int64_t count = segment.count - skipped;
  if (count <= 0) return;
  Matrix queries(count, dim);
  const float* from = args.queries.as<float>();
  double* sums = args.sums + (segment.sequence * int64_t{args.q_heads} + head) * dim;
  for (int64_t t = 0; t < count; ++t) {
    const float* query = from + ((segment.first_token + skipped + t) * args.q_heads + head) * dim;
    for (int64_t d = 0; d < dim; ++d) {
      queries(t, d) = query[d];
      sums[d] += query[d];
    }
  }
  Eigen::Map<Matrix> products(args.products + (segment.sequence * int64_t{args.q_heads} + head) * dim * dim, dim, dim);
  products.selfadjointView<Eigen::Upper>().rankUpdate(queries.transpose());
  for (int64_t a = 0; a < dim; ++a) {
    for (int64_t b = 0; b < a; ++b) products(a, b) = products(b, a);
  }
}

// R̄: for each frequency the mean cosine and sine over the positions to come.
struct Rotation {
  std::vector<double> cosine;
  std::vector<double> sine;

  // x[d], x[d + half], `stride` apart.
  void apply(double* x, int64_t stride) const {
    const int64_t half = static_cast<int64_t>(cosine.size());
    for (int64_t d = 0; d < half; ++d) {
      const double a = x[d * stride], b = x[(d + half) * stride];
      x[d * stride] = cosine[d] * a - sine[d] * b;
      x[(d + half) * stride] = cosine[d] * b + sine[d] * a;
    }
  }
};

Rotation average_rotation(const ExpectedAttentionArgs& args, int64_t sequence) {
  const int64_t half = args.cache.head_dim / 2;
  Rotation rotation{std::vector<double>(half), std::vector<double>(half)};
  for (int i = 0; i < args.future; ++i) {
    const float position = static_cast<float>(args.next_position[sequence] + i);
    for (int64_t d = 0; d < half; ++d) {
      const double angle = position * args.inv_freq[d];  // rounded to f32, as in rope
      rotation.cosine[d] += std::cos(angle) / args.future;
      rotation.sine[d] += std::sin(angle) / args.future;
    }
  }
  return rotation;
}

// What the scores need of a query head: weight = Σ'/(2D) and bias = μ'/√D, so that u = k·(weight·k + bias).
struct Moments {
  std::vector<float> weight;
  std::vector<float> bias;
};

Moments future_moments(const ExpectedAttentionArgs& args, const Rotation& rotation, int64_t sequence, int64_t head) {
  const int64_t dim = args.cache.head_dim;
  const int64_t index = sequence * args.q_heads + head;
  const double count = std::max(1, args.counts[sequence]);
  std::vector<double> mean(args.sums + index * dim, args.sums + (index + 1) * dim);
  for (double& x : mean) x /= count;
  std::vector<double> covariance(dim * dim);
  if (args.use_covariance) {
    const double* products = args.products + index * dim * dim;
    for (int64_t a = 0; a < dim; ++a) {
      for (int64_t b = 0; b < dim; ++b) covariance[a * dim + b] = products[a * dim + b] / count - mean[a] * mean[b];
    }
    for (int64_t b = 0; b < dim; ++b) rotation.apply(covariance.data() + b, dim);
    for (int64_t a = 0; a < dim; ++a) rotation.apply(covariance.data() + a * dim, 1);
  }
  rotation.apply(mean.data(), 1);
  Moments moments{std::vector<float>(dim * dim), std::vector<float>(dim)};
  for (int64_t i = 0; i < dim * dim; ++i) moments.weight[i] = static_cast<float>(covariance[i] / (2.0 * dim));
  for (int64_t d = 0; d < dim; ++d) moments.bias[d] = static_cast<float>(mean[d] / std::sqrt(double(dim)));
  return moments;
}

// mean_probability[j] += softmax_j(u) / group over `count` gathered keys.
void add_probability(const ExpectedAttentionArgs& args, const Moments& moments, const float* keys, int64_t count,
                     float* turned, float* logits, float* mean_probability) {
  const int64_t dim = args.cache.head_dim;
  if (args.use_covariance) {
    gemm_nt(keys, count, dim, moments.weight.data(), dim, dim, dim, turned, dim);
  }
  for (int64_t j = 0; j < count; ++j) {
    const float* key = keys + j * dim;
    const double quadratic = args.use_covariance ? dot(key, turned + j * dim, dim) : 0.0f;
    logits[j] = static_cast<float>(quadratic + dot(key, moments.bias.data(), dim));
  }
  const float total = exp_row(logits, count, largest(logits, count));
  const float factor = static_cast<float>(args.cache.kv_heads) / static_cast<float>(args.q_heads) / total;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) mean_probability[j] += logits[j] * factor;
}

void score_row(const ExpectedAttentionArgs& args, const Rotation& rotation, int64_t row) {
  const PagedView& cache = args.cache;
  const int64_t dim = cache.head_dim;
  const int64_t group = args.q_heads / cache.kv_heads;
  const int64_t length = cache.lengths[row];
  float* scores = args.scores.row(row);
  int64_t sinks = 0;
  while (sinks < length && cache.positions[pool_index(cache, row, sinks)] < args.sinks) ++sinks;
  const int64_t count = length - sinks;
  float* beyond_sinks = scores + sinks;
  std::fill_n(beyond_sinks, count, 0.0f);
  if (count > 0) {
    const Scratch keys(count * dim), turned(count * dim), logits(count);
    gather_keys(cache, row, sinks, count, keys.data());
    for (int64_t g = 0; g < group; ++g) {
      const int64_t head = row % cache.kv_heads * group + g;
      add_probability(args, future_moments(args, rotation, row / cache.kv_heads, head), keys.data(), count,
                      turned.data(), logits.data(), beyond_sinks);
    }
  }
  const float* values = cache.values.as<float>();
  for (int64_t j = 0; j < count; ++j) {
    const float* value = values + pool_index(cache, row, sinks + j) * dim;
    beyond_sinks[j] = (beyond_sinks[j] + args.epsilon) * std::sqrt(dot(value, value, dim));
  }
  std::fill_n(scores, sinks, (count > 0 ? largest(beyond_sinks, count) : 0.0f) + 1.0f);
}

}  // namespace

void query_moments(const QueryMomentsArgs& args) {
  parallel_for(args.segment_count * args.q_heads,
               [&](int64_t task) { add_moments(args, args.segments[task / args.q_heads], task % args.q_heads); });
}

void expected_attention(const ExpectedAttentionArgs& args) {
  const PagedView& cache = args.cache;
  const auto due = [&](int64_t row) { return !args.rows_due || args.rows_due[row]; };
  std::vector<Rotation> rotations(cache.rows / cache.kv_heads);
  parallel_for(static_cast<int64_t>(rotations.size()), [&](int64_t sequence) {
    bool wanted = false;
    for (int64_t head = 0; head < cache.kv_heads; ++head) wanted |= due(sequence * cache.kv_heads + head);
    if (wanted) rotations[sequence] = average_rotation(args, sequence);
  });
  parallel_for(cache.rows, [&](int64_t row) {
    if (due(row)) score_row(args, rotations[row / cache.kv_heads], row);
  });
}

}  // namespace kv::cpu
