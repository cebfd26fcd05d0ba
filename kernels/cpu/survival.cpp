#include "kernels/survival.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

constexpr int64_t kQueryTile = 16;

struct Candidate {
  float weight;
  int32_t slot;
  // The total order: larger first, then newer.
  bool operator<(const Candidate& other) const {
    return weight != other.weight ? weight > other.weight : slot > other.slot;
  }
};

// Moves the smallest set that reaches `share` of the total to the front and returns its size. Only as much as needed is
// sorted: a few keys hold most of the mass.
int64_t order_until(std::vector<Candidate>& candidates, double share, double total) {
  const int64_t count = static_cast<int64_t>(candidates.size());
  double sum = 0;
  for (int64_t sorted = 0, next = 64; sorted < count; next *= 2) {
    const int64_t end = std::min(count, next);
    std::partial_sort(candidates.begin() + sorted, candidates.begin() + end, candidates.end());
    for (; sorted < end; ++sorted) {
      if (sum >= share * total) return sorted;
      sum += candidates[sorted].weight;
    }
  }
  return count;
}

// How many candidates, moved to the front, one query head selects. `logits` are destroyed.
int64_t select(const SurvivalArgs& args, float* logits, int64_t visible, std::vector<Candidate>& candidates) {
  candidates.resize(visible);
  double total = 0;
  if (args.top_k == 0) {
    exp_row(logits, visible, largest(logits, visible));
    total = sum_of<double>(visible, [=](int64_t j) { return double{logits[j]}; });
  }
  for (int64_t j = 0; j < visible; ++j) candidates[j] = {logits[j], static_cast<int32_t>(j)};
  if (args.top_k == 0) return order_until(candidates, args.mass, total);
  if (args.top_k < visible) {
    std::nth_element(candidates.begin(), candidates.begin() + args.top_k, candidates.end());
  }
  return std::min<int64_t>(args.top_k, visible);
}

void survive_row(const SurvivalArgs& args, const Segment& segment, int64_t kv_head) {
  const PagedView& cache = args.cache;
  const int64_t dim = cache.head_dim;
  const int64_t group = args.q_heads / cache.kv_heads;
  const int64_t row = segment.sequence * int64_t{cache.kv_heads} + kv_head;
  const int64_t length = cache.lengths[row];
  const Scratch keys(length * dim), queries(kQueryTile * group * dim), logits(kQueryTile * group * length);
  gather_keys(cache, row, 0, length, keys.data());
  std::vector<Candidate> candidates;
  for (int64_t first = 0; first < segment.count; first += kQueryTile) {
    const int64_t count = std::min<int64_t>(kQueryTile, segment.count - first);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = segment.first_token + first + i;
      std::copy_n(args.queries.as<float>() + (token * args.q_heads + kv_head * group) * dim, group * dim,
                  queries.data() + i * group * dim);
    }
    const int64_t seen = length - segment.count + first + count;
    gemm_nt(queries.data(), count * group, dim, keys.data(), seen, dim, dim, logits.data(), length, args.scale);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t visible = length - segment.count + first + i + 1;
      const int32_t position = segment.first_position + static_cast<int32_t>(first + i);
      for (int64_t g = 0; g < group; ++g) {
        int32_t* last = args.last_selected.row(row * group + g);
        const int64_t selected = select(args, logits.data() + (i * group + g) * length, visible, candidates);
        for (int64_t k = 0; k < selected; ++k) {
          int32_t& entry = last[candidates[k].slot];
          entry = std::max(entry, position);
        }
      }
    }
  }
}

}  // namespace

void survival(const SurvivalArgs& args) {
  const int64_t kv_heads = args.cache.kv_heads;
  parallel_for(args.segment_count * kv_heads, [&](int64_t task) {
    const Segment& segment = args.segments[task / kv_heads];
    if (segment.count > 0) survive_row(args, segment, task % kv_heads);
  });
}

}  // namespace kv::cpu
