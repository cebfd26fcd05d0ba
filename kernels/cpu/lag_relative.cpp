#include "kernels/lag_relative.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// A row's entries [first, first + lag) among the keys or the values.
struct Partition {
  const PagedView& cache;
  const float* pool;
  int64_t row;
  int64_t first;
  int64_t lag;

  template <class Visit>
  void for_vectors(const Visit& visit) const {
    for_page_runs(cache, row, first, lag, [&](int64_t page, int64_t place, int64_t done, int64_t run) {
      for (int64_t i = 0; i < run; ++i) visit(done + i, pool + (page * kPageTokens + place + i) * cache.head_dim);
    });
  }
  Partition next() const { return {cache, pool, row, first + lag, lag}; }
};

struct Range {
  std::vector<float> low, span;  // [head_dim]
};

Range range_of(const Partition& partition) {
  const auto dim = static_cast<size_t>(partition.cache.head_dim);
  Range range{std::vector<float>(dim, std::numeric_limits<float>::infinity()), {}};
  std::vector<float> high(dim, -std::numeric_limits<float>::infinity());
  partition.for_vectors([&](int64_t, const float* x) {
    for (size_t d = 0; d < dim; ++d) {
      range.low[d] = std::min(range.low[d], x[d]);
      high[d] = std::max(high[d], x[d]);
    }
  });
  for (size_t d = 0; d < dim; ++d) range.span.push_back(high[d] - range.low[d]);
  return range;
}

// Summed in double: entries far outside of the range have large mean and small spread.
double spread(const float* x, const Range& range) {
  const size_t dim = range.low.size();
  if (dim < 2) return 0;
  double sum = 0, squares = 0;
  std::vector<double> relative(dim);
  for (size_t d = 0; d < dim; ++d) {
    relative[d] = range.span[d] > 0 ? (double{x[d]} - range.low[d]) / range.span[d] : 0;
    sum += relative[d];
  }
  const double mean = sum / static_cast<double>(dim);
  for (const double value : relative) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(dim - 1));
}

// Adds half of the softmax over the partition of its entries' spreads.
void add_shares(const Partition& partition, std::vector<double>& shares) {
  const Range range = range_of(partition.next());
  std::vector<double> spreads(shares.size());
  partition.for_vectors([&](int64_t i, const float* x) { spreads[static_cast<size_t>(i)] = spread(x, range); });
  const double largest = *std::max_element(spreads.begin(), spreads.end());
  double total = 0;
  for (double& value : spreads) total += value = std::exp(value - largest);
  for (size_t i = 0; i < shares.size(); ++i) shares[i] += 0.5 * spreads[i] / total;
}

void write_ranks(const std::vector<double>& shares, float* scores) {
  std::vector<int32_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return shares[static_cast<size_t>(a)] < shares[static_cast<size_t>(b)];
  });
  const auto count = static_cast<float>(shares.size());
  for (size_t rank = 0; rank < order.size(); ++rank) scores[order[rank]] = static_cast<float>(rank) / count;
}

void score_row(const LagRelativeArgs& args, int64_t row) {
  const PagedView& cache = args.cache;
  const int64_t length = cache.lengths[row], sinks = args.sinks, lag = args.lag;
  float* scores = args.scores.row(row);
  std::fill(scores, scores + length, 1.0F);
  if (length < sinks + 2 * lag) {
    for (int64_t slot = sinks; slot < length; ++slot) {
      scores[slot] = static_cast<float>(slot - sinks) / static_cast<float>(length - sinks);
    }
    return;
  }
  const int64_t partitions = (length - sinks) / lag;
  for (int64_t p = 0; p + 1 < partitions; ++p) {
    const int64_t first = sinks + p * lag;
    std::vector<double> shares(static_cast<size_t>(lag), 0.0);
    add_shares({cache, cache.keys.as<float>(), row, first, lag}, shares);
    add_shares({cache, cache.values.as<float>(), row, first, lag}, shares);
    if (args.scale == LagRelativeArgs::Scale::kRank) {
      write_ranks(shares, scores + first);
    } else {
      std::copy(shares.begin(), shares.end(), scores + first);
    }
  }
}

}  // namespace

void lag_relative(const LagRelativeArgs& args) {
  KV_CHECK(args.sinks >= 0 && args.lag >= 1 && args.lag <= kLargestLag);
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) score_row(args, row);
  });
}

}  // namespace kv::cpu
