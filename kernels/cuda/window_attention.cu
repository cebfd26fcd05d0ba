#include "kernels/window_attention.h"

#include "kernels/cuda/window_probabilities.cuh"

namespace kv::cuda {

namespace {

using Mode = WindowAttentionArgs::Mode;

// Where a head's k-th statistic goes.
template <GroupMax Max, class Statistics>
__device__ int64_t vector_at(const WindowAttentionArgs& args, const ProbabilityWork& work, int64_t row, int k, int g) {
  if (Max != GroupMax::kNone) return row;
  return Statistics::kCount > 1 ? row * args.planes + k * work.group + g : row * work.group + g;
}

// scores = statistics of the window's queries' probabilities.
template <int D, GroupMax Max, class Statistics>
__global__ void __launch_bounds__(KeyTile<D>::kThreads, 3)
    add_probabilities(WindowAttentionArgs args, ProbabilityWork work) {
  using Tile = KeyTile<D>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) float shifts[2][Tile::kQueries];
  int64_t row, tile;
  int head_tile;
  if (!place_block<D, Max>(args, work, row, tile, head_tile)) return;
  const int64_t columns = columns_of<Max>(args, row);
  Logits<D, Max> logits{args, work, reinterpret_cast<bf16*>(shared), shifts, row, tile * Tile::kKeys, head_tile, {}};
  logits.hold_keys(columns);
  Statistics statistics;
  take_window(logits, statistics);
  // Where the group's logits are maximised all heads have the same sum; adding them up is exact, as is their number.
  constexpr bool kIsMax = Max != GroupMax::kNone;
  const int heads = kIsMax ? 1 : work.heads();
  const auto weight = static_cast<float>(Statistics::kCount > 1 ? 1
                                         : kIsMax               ? args.window << work.head_shift
                                                                : args.window);
  visit_statistics<Statistics, Tile::kM>(statistics, heads, [&](int k, int m, int half, int h, float value) {
    const int64_t slot = logits.slot(m, 2 * half);
    const int g = (head_tile << work.head_shift) + h;
    if (slot >= columns || (!kIsMax && g >= work.group)) return;
    args.scores.row(vector_at<Max, Statistics>(args, work, row, k, g))[slot] = value / weight;
  });
}

template <int D, GroupMax Max, class Statistics = Mean<KeyTile<D>::kM>>
void score(const WindowAttentionArgs& args) {
  using Tile = KeyTile<D>;
  ProbabilityWork work = probability_work<D, Max>(args);
  const Scratch<float> shifts(args.cache.rows * work.vectors);
  find_shifts<D, Max>(args, shifts.data());
  work.shifts = shifts.data();
  const int64_t blocks = args.cache.rows * work.tiles * (Max == GroupMax::kNone ? work.head_tiles : 1);
  launch(add_probabilities<D, Max, Statistics>, blocks, Tile::kThreads, Logits<D, Max>::kSharedBytes, args, work);
}

}  // namespace

void window_attention(const WindowAttentionArgs& args) {
  check_cache(args.cache);
  check_vectors(args.queries.as<bf16>(), args.cache.head_dim);
  KV_CHECK(args.window > 0 && args.q_heads % args.cache.kv_heads == 0);
  check_planes(args);
  with_width(args.cache.head_dim, [&](auto width) {
    switch (args.mode) {
      case Mode::kPerQueryHead:
        return score<width, GroupMax::kNone>(args);
      case Mode::kGroupMaxOlder:
        return score<width, GroupMax::kLogits>(args);
      case Mode::kGroupMaxProbabilityOlder:
        return score<width, GroupMax::kProbabilities>(args);
      case Mode::kSuffixSums:
        return args.suffix_count == 3 ? score<width, GroupMax::kNone, SuffixSums<KeyTile<width>::kM, 3>>(args)
                                      : score<width, GroupMax::kNone, SuffixSums<KeyTile<width>::kM, 4>>(args);
      case Mode::kExtremes:
        return score<width, GroupMax::kNone, Extremes<KeyTile<width>::kM>>(args);
    }
  });
}

}  // namespace kv::cuda
