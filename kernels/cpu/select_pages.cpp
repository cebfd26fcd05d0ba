#include "kernels/select_pages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

float bound_of(const float* query, const float* bounds, int64_t dim) {
  float sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += std::max(query[d] * bounds[d], query[d] * bounds[dim + d]);
  return std::isnan(sum) ? std::numeric_limits<float>::infinity() : sum;
}

// One row of what is written.
class RowChoice {
 public:
  RowChoice(const SelectPagesArgs& args, const Segment& segment, int64_t row, int64_t written, int64_t first_head,
            int64_t heads)
      : args_(args),
        segment_(segment),
        table_(args.cache.page_table + row * args.cache.max_pages),
        chosen_(args.page_table + written * args.cache.max_pages),
        length_(args.cache.lengths[row]),
        pages_((length_ + kPageTokens - 1) / kPageTokens),
        first_head_(first_head),
        heads_(heads) {}

  // Returns the entries that are read.
  int32_t write() {
    const bool all = segment_.count != 1 || pages_ <= args_.pages;
    std::vector<int64_t> read(static_cast<size_t>(pages_));
    std::iota(read.begin(), read.end(), int64_t{0});
    if (!all) choose(read);
    std::fill_n(chosen_, args_.cache.max_pages, -1);
    for (size_t i = 0; i < read.size(); ++i) chosen_[i] = table_[read[i]];
    return static_cast<int32_t>(std::ssize(read) * kPageTokens - (pages_ * kPageTokens - length_));
  }

 private:
  void choose(std::vector<int64_t>& read) const {
    const int64_t first_newest = std::max<int64_t>(0, length_ - args_.newest) / kPageTokens;
    const int64_t others = std::max<int64_t>(0, args_.pages - (pages_ - first_newest));
    std::vector<float> bounds;
    for (int64_t page = 0; page < first_newest; ++page) bounds.push_back(bound(page));
    const auto candidates = read.begin() + first_newest;
    std::partial_sort(read.begin(), read.begin() + std::min(others, first_newest), candidates,
                      [&](int64_t a, int64_t b) { return bounds[a] != bounds[b] ? bounds[a] > bounds[b] : a > b; });
    read.erase(read.begin() + std::min(others, first_newest), candidates);
    std::sort(read.begin(), read.end());
  }

  float bound(int64_t page) const {
    const int64_t dim = args_.cache.head_dim;
    const float* bounds = args_.cache.bounds.as<float>() + int64_t{table_[page]} * 2 * dim;
    const float* queries = args_.queries.as<float>() + int64_t{segment_.first_token} * args_.q_heads * dim;
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t head = first_head_; head < first_head_ + heads_; ++head) {
      largest = std::max(largest, bound_of(queries + head * dim, bounds, dim));
    }
    return largest;
  }

  const SelectPagesArgs& args_;
  const Segment& segment_;
  const int32_t* table_;
  int32_t* chosen_;
  int64_t length_, pages_, first_head_, heads_;
};

}  // namespace

void select_pages(const SelectPagesArgs& args) {
  const PagedView& cache = args.cache;
  KV_CHECK(cache.bounds.data && args.pages >= 1 && args.newest >= 1);
  const int64_t group = args.q_heads / cache.kv_heads, rows = args.per_query_head ? args.q_heads : cache.kv_heads;
  parallel_for(args.segment_count * rows, [&](int64_t task) {
    const Segment& segment = args.segments[task / rows];
    const int64_t head = task % rows, written = int64_t{segment.sequence} * rows + head;
    const int64_t kv_head = args.per_query_head ? head / group : head;
    RowChoice choice(args, segment, int64_t{segment.sequence} * cache.kv_heads + kv_head, written,
                     args.per_query_head ? head : head * group, args.per_query_head ? 1 : group);
    args.lengths[written] = choice.write();
  });
}

}  // namespace kv::cpu
