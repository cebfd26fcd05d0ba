#include "tests/ref/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ref/softmax.h"

namespace kv::ref {

Attended attend(const CacheRows& rows, const std::vector<float>& queries, const std::vector<Segment>& segments,
                int q_heads, double scale, int64_t pitch) {
  const int dim = rows.head_dim;
  const int group = q_heads / rows.kv_heads;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Attended out;
  out.output.assign(queries.size(), nan);
  out.sums.assign(static_cast<size_t>(rows.rows() * group * pitch), nan);
  out.maxima = out.sums;
  for (const Segment& segment : segments) {
    for (int i = 0; i < segment.count; ++i) {
      for (int head = 0; head < q_heads; ++head) {
        const int64_t row = int64_t{segment.sequence} * rows.kv_heads + head / group;
        const int64_t visible = rows.length(row) - segment.count + i + 1;
        const size_t at = (static_cast<size_t>(segment.first_token + i) * q_heads + head) * dim;
        std::vector<double> a(static_cast<size_t>(visible));
        for (int64_t slot = 0; slot < visible; ++slot) {
          double terms = 0;
          for (int d = 0; d < dim; ++d) {
            const double term = scale * queries[at + d] * rows.keys[row][slot * dim + d];
            a[slot] += term;
            terms += std::abs(term);
          }
          out.largest_logit_terms = std::max(out.largest_logit_terms, terms);
        }
        softmax(a);
        for (int d = 0; d < dim; ++d) {
          double sum = 0;
          for (int64_t slot = 0; slot < visible; ++slot) sum += a[slot] * rows.values[row][slot * dim + d];
          out.output[at + d] = sum;
        }
        double* sums = out.sums.data() + (row * group + head % group) * pitch;
        double* maxima = out.maxima.data() + (row * group + head % group) * pitch;
        if (i == 0) std::fill_n(sums, rows.length(row), 0.0);
        if (i == 0) std::fill_n(maxima, rows.length(row), 0.0);
        for (int64_t slot = 0; slot < visible; ++slot) {
          sums[slot] += a[slot];
          maxima[slot] = std::max(maxima[slot], a[slot]);
        }
      }
    }
  }
  return out;
}

}  // namespace kv::ref
