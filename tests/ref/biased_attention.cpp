#include "tests/ref/biased_attention.h"

#include <cmath>
#include <limits>

#include "tests/ref/softmax.h"
#include "tests/support/close.h"

namespace kv::ref {

namespace {

// One query of one head, with the keys that it sees.
struct Row {
  std::vector<double> p;
  std::vector<double> roundings;  // of p, relative
  std::vector<double> output;     // [head_dim]
  double log_sum = 0;
  double log_sum_roundings = 0;
};

// Where vectors of the packed tensors begin.
struct Places {
  const BiasedProblem& problem;
  const Segment& segment;
  int head;

  int64_t of_query(int i) const { return (int64_t{segment.first_token} + i) * problem.q_heads + head; }
  int64_t of_key(int j) const {
    return (int64_t{segment.first_token} + j) * problem.kv_heads + head / (problem.q_heads / problem.kv_heads);
  }
};

// ∂bias(i, j) / ∂b_j.
double bias_weight(const BiasedProblem& problem, int distance) {
  if (problem.form == KeyBias::Form::kDistance) return distance;
  return problem.form == KeyBias::Form::kOutsideWindow && distance >= problem.window ? 1 : 0;
}

Row row_of(const Places& at, int i) {
  const BiasedProblem& problem = at.problem;
  const int dim = problem.head_dim;
  const double* q = problem.queries.data() + at.of_query(i) * dim;
  Row row;
  std::vector<double> terms;
  for (int j = 0; j <= i; ++j) {
    const double* k = problem.keys.data() + at.of_key(j) * dim;
    double logit = 0, sum = 0;
    for (int d = 0; d < dim; ++d) {
      logit += problem.scale * q[d] * k[d];
      sum += std::abs(problem.scale * q[d] * k[d]);
    }
    const double weight = bias_weight(problem, i - j);
    const double bias = weight == 0 ? 0 : weight * problem.biases[at.of_key(j)];
    row.p.push_back(logit + bias);
    // Of what f32 takes for 0 nothing is left that could be off.
    terms.push_back(sum + (bias > -1000 ? std::abs(bias) : 0));
  }
  const std::vector<double> logits = row.p;
  softmax(row.p);
  row.log_sum = logits[i] - std::log(row.p[i]);
  double mean = 0;
  for (int j = 0; j <= i; ++j) mean += row.p[j] * terms[j];
  row.log_sum_roundings = (dim + 4) * mean + 6 + i + std::abs(row.log_sum);
  for (int j = 0; j <= i; ++j) row.roundings.push_back((dim + 4) * terms[j] + 6 + row.log_sum_roundings);
  row.output.assign(dim, 0);
  for (int j = 0; j <= i; ++j) {
    for (int d = 0; d < dim; ++d) row.output[d] += row.p[j] * problem.values[at.of_key(j) * dim + d];
  }
  return row;
}

template <class Visit>
void for_rows(const BiasedProblem& problem, const Visit& visit) {
  for (const Segment& segment : problem.segments) {
    for (int head = 0; head < problem.q_heads; ++head) {
      const Places at{problem, segment, head};
      for (int i = 0; i < segment.count; ++i) visit(at, i, row_of(at, i));
    }
  }
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Of one place what Sums has of all, side by side: four arrays apart may lie so that a sum's store and the next one's
// load share the low bits of their addresses, and every one waits.
struct Total {
  double value = kNan, magnitude = kNan, roundings = kNan, squares = kNan;  // until something is added

  void add(double term, double size, double steps) {
    if (std::isnan(value)) *this = {0, 0, 0, 0};
    value += term;
    magnitude += size;
    roundings += size * steps;
    squares += size * size;
  }
};

Sums sums_of(const std::vector<Total>& totals) {
  Sums sums;
  for (const Total& total : totals) {
    sums.values.push_back(total.value);
    sums.magnitudes.push_back(total.magnitude);
    sums.roundings.push_back(total.roundings);
    sums.spreads.push_back(std::sqrt(total.squares));
  }
  return sums;
}

}  // namespace

BiasedAttention biased_attention(const BiasedProblem& problem, const std::vector<double>& output_gradient) {
  const int dim = problem.head_dim;
  std::vector<Total> output(problem.queries.size()), log_sums(problem.queries.size() / dim);
  std::vector<Total> query_gradient(problem.queries.size()), key_gradient(problem.keys.size());
  std::vector<Total> value_gradient(problem.values.size()), bias_gradient(problem.biases.size());
  for_rows(problem, [&](const Places& at, int i, const Row& row) {
    const int64_t query = at.of_query(i);
    log_sums[query].add(row.log_sum, 1, row.log_sum_roundings);
    const double* dy = output_gradient.data() + query * dim;
    double mean_slope = 0, mean_terms = 0;
    for (int d = 0; d < dim; ++d) {
      mean_slope += dy[d] * row.output[d];
      mean_terms += std::abs(dy[d] * row.output[d]);
    }
    for (int j = 0; j <= i; ++j) {
      const int64_t key = at.of_key(j);
      const double p = row.p[j], roundings = row.roundings[j];
      if (p == 0) continue;  // adds nothing
      double dp = 0, terms = mean_terms;
      for (int d = 0; d < dim; ++d) {
        dp += dy[d] * problem.values[key * dim + d];
        terms += std::abs(dy[d] * problem.values[key * dim + d]);
      }
      const double ds = p * (dp - mean_slope), size = p * terms;
      for (int d = 0; d < dim; ++d) {
        const double v = problem.values[key * dim + d];
        const double k = problem.scale * problem.keys[key * dim + d];
        const double q = problem.scale * problem.queries[query * dim + d];
        output[query * dim + d].add(p * v, p * std::abs(v), roundings);
        value_gradient[key * dim + d].add(p * dy[d], p * std::abs(dy[d]), roundings);
        query_gradient[query * dim + d].add(ds * k, size * std::abs(k), roundings + dim + 4);
        key_gradient[key * dim + d].add(ds * q, size * std::abs(q), roundings + dim + 4);
      }
      if (problem.form == KeyBias::Form::kNone) continue;
      const double weight = bias_weight(problem, i - j);
      // A distance may be a difference of two places in a tile, times which slopes are summed apart: of a query's own
      // key both are there, and all that is left of them is how they were rounded.
      const double size_of_weight = problem.form == KeyBias::Form::kDistance ? weight + 1 : weight;
      bias_gradient[key].add(weight * ds, size_of_weight * size, roundings + dim + 4);
    }
  });
  return {.output = sums_of(output),
          .log_sums = sums_of(log_sums),
          .query_gradient = sums_of(query_gradient),
          .key_gradient = sums_of(key_gradient),
          .value_gradient = sums_of(value_gradient),
          .bias_gradient = sums_of(bias_gradient)};
}

double biased_loss(const BiasedProblem& problem, const std::vector<double>& output_gradient) {
  double loss = 0;
  for_rows(problem, [&](const Places& at, int i, const Row& row) {
    for (int d = 0; d < problem.head_dim; ++d) {
      loss += row.output[d] * output_gradient[at.of_query(i) * problem.head_dim + d];
    }
  });
  return loss;
}

::testing::AssertionResult are_close(const Backend& backend, const std::vector<float>& got, const Sums& want,
                                     double chain) {
  if (got.size() != want.values.size()) {
    return ::testing::AssertionFailure() << got.size() << " values, expected " << want.values.size();
  }
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon(), kSmallest = 1e-30;
  const double storage = storage_roundings(backend);
  double error = 0, allowed = 0, stored = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want.values[i])) {
      if (!std::isnan(got[i])) return ::testing::AssertionFailure() << "place " << i << " was written";
      continue;
    }
    const double f32 = want.roundings[i] + chain * want.magnitudes[i];
    const ::testing::AssertionResult close =
        is_close(got[i], want.values[i], {.magnitude = f32 + storage * want.magnitudes[i] + kSmallest});
    if (!close) return ::testing::AssertionResult(close) << ", element " << i;
    error += std::pow(got[i] - want.values[i], 2);
    allowed += std::pow(f32 * kEpsilon, 2);
    stored += std::pow(storage / 2 * kEpsilon, 2) * (std::pow(want.spreads[i], 2) + std::pow(want.values[i], 2));
  }
  if (std::sqrt(error) <= std::sqrt(allowed) + std::sqrt(stored) + kSmallest) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "a whole error of " << std::sqrt(error) << " > "
                                       << std::sqrt(allowed) + std::sqrt(stored);
}

}  // namespace kv::ref
