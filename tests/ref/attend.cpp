#include "tests/ref/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ref/softmax.h"
#include "tests/support/close.h"

namespace kv::ref {

namespace {

// Of the first `visible` slots of a row, those that the query at that position sees.
struct SeenEntries {
  SeenEntries(const CacheRows& rows, int64_t row, int64_t visible, int32_t position) {
    const int64_t dim = rows.head_dim;
    for (int64_t slot = 0; slot < visible; ++slot) {
      if (!rows.expires.empty() && rows.expires[row][slot] <= position) continue;
      slots.push_back(slot);
      keys.insert(keys.end(), rows.keys[row].data() + slot * dim, rows.keys[row].data() + (slot + 1) * dim);
      values.insert(values.end(), rows.values[row].data() + slot * dim, rows.values[row].data() + (slot + 1) * dim);
    }
  }
  std::vector<int64_t> slots;
  std::vector<float> keys, values;  // [slots, head_dim]
};

}  // namespace

AttendedRow attend_row(const float* query, const float* keys, const float* values, int64_t visible, int head_dim,
                       double scale) {
  AttendedRow out;
  std::vector<double>& a = out.weights;
  a.resize(static_cast<size_t>(visible));
  for (int64_t slot = 0; slot < visible; ++slot) {
    const float* key = keys + slot * head_dim;
    double logit = 0, terms = 0;
#pragma omp simd reduction(+ : logit, terms)
    for (int d = 0; d < head_dim; ++d) {
      const double term = scale * query[d] * key[d];
      logit += term;
      terms += std::abs(term);
    }
    a[static_cast<size_t>(slot)] = logit;
    out.logit_terms = std::max(out.logit_terms, terms);
  }
  const auto most = std::max_element(a.begin(), a.end());
  const double largest_logit = *most;
  softmax(a);
  out.log_sum = largest_logit - std::log(*most);
  out.output.assign(static_cast<size_t>(head_dim), 0.0);
  double* output = out.output.data();
  for (int64_t slot = 0; slot < visible; ++slot) {
    const float* value = values + slot * head_dim;
    const double weight = a[static_cast<size_t>(slot)];
    double square = 0, largest = 0;
#pragma omp simd reduction(+ : square) reduction(max : largest)
    for (int d = 0; d < head_dim; ++d) {
      output[d] += weight * value[d];
      square += double{value[d]} * value[d];
      largest = std::max(largest, double{std::abs(value[d])});
    }
    out.spread += weight * weight * square;
    out.largest_value = std::max(out.largest_value, largest);
  }
  out.spread = std::sqrt(out.spread);
  return out;
}

Attended attend(const CacheRows& rows, const std::vector<float>& queries, const std::vector<Segment>& segments,
                int q_heads, double scale, int64_t pitch) {
  const int dim = rows.head_dim;
  const int group = q_heads / rows.kv_heads;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Attended out;
  out.output.assign(queries.size(), nan);
  out.spreads.assign(queries.size() / dim, nan);
  out.log_sums = out.spreads;
  out.sums.assign(static_cast<size_t>(rows.rows() * group * pitch), nan);
  out.maxima = out.sums;
  for (const Segment& segment : segments) {
    for (int i = 0; i < segment.count; ++i) {
      for (int head = 0; head < q_heads; ++head) {
        const int64_t row = int64_t{segment.sequence} * rows.kv_heads + head / group;
        const int64_t visible = rows.length(row) - segment.count + i + 1;
        const size_t vector = static_cast<size_t>(segment.first_token + i) * q_heads + head;
        const SeenEntries seen(rows, row, visible, segment.first_position + i);
        const AttendedRow attended = attend_row(queries.data() + vector * dim, seen.keys.data(), seen.values.data(),
                                                std::ssize(seen.slots), dim, scale);
        std::copy(attended.output.begin(), attended.output.end(), out.output.data() + vector * dim);
        out.spreads[vector] = attended.spread;
        out.log_sums[vector] = attended.log_sum;
        out.largest_logit_terms = std::max(out.largest_logit_terms, attended.logit_terms);
        out.largest_value = std::max(out.largest_value, attended.largest_value);
        double* sums = out.sums.data() + (row * group + head % group) * pitch;
        double* maxima = out.maxima.data() + (row * group + head % group) * pitch;
        if (i == 0) std::fill_n(sums, rows.length(row), 0.0);
        if (i == 0) std::fill_n(maxima, rows.length(row), 0.0);
        for (size_t k = 0; k < seen.slots.size(); ++k) {
          sums[seen.slots[k]] += attended.weights[k];
          maxima[seen.slots[k]] = std::max(maxima[seen.slots[k]], attended.weights[k]);
        }
      }
    }
  }
  return out;
}

double probability_roundings(const Attended& want, int head_dim, double chain) {
  return 2 * (head_dim + 3) * want.largest_logit_terms + 6 + chain;
}

::testing::AssertionResult outputs_are_close(const Backend& backend, const std::vector<float>& got,
                                             const Attended& want, int head_dim, double chain) {
  if (got.size() != want.output.size()) {
    return ::testing::AssertionFailure() << got.size() << " values, expected " << want.output.size();
  }
  const double f32 = probability_roundings(want, head_dim, chain) + chain, storage = storage_roundings(backend);
  const Tolerance value{.roundings = f32 + storage, .magnitude = want.largest_value};
  for (size_t vector = 0; vector < want.spreads.size(); ++vector) {
    double error = 0, length = 0;
    for (size_t i = vector * head_dim; i < (vector + 1) * head_dim; ++i) {
      const ::testing::AssertionResult close = is_close(got[i], want.output[i], value);
      if (!close) return ::testing::AssertionResult(close) << ", value " << i % head_dim << " of vector " << vector;
      error += std::pow(got[i] - want.output[i], 2);
      length += std::pow(want.output[i], 2);
    }
    const Tolerance whole{.roundings = f32 + storage / 2, .magnitude = std::sqrt(length) + want.spreads[vector]};
    if (!(std::sqrt(error) <= whole.allowed())) {
      return ::testing::AssertionFailure() << "vector " << vector << " of length " << std::sqrt(length) << ", error "
                                           << std::sqrt(error) << " > " << whole.allowed();
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace kv::ref
