#include "kernels/attention_mass.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// Consecutive queries of one sequence share the gathered keys.
constexpr int64_t kQueryTile = 16;

struct Tile {
  int64_t first = 0;
  int64_t count = 0;
};

std::vector<Tile> tiles_of(const AttentionMassArgs& args) {
  std::vector<Tile> tiles;
  for (int64_t n = 0; n < args.count; ++n) {
    const bool joins =
        !tiles.empty() && tiles.back().count < kQueryTile && args.sequences[tiles.back().first] == args.sequences[n];
    if (!joins) tiles.push_back({.first = n});
    ++tiles.back().count;
  }
  return tiles;
}

// Σ weights[slot] over the slots [0, visible) whose position is in the sorted set.
double sum_in_set(const float* weights, const std::vector<int32_t>& positions, int64_t visible, const int32_t* set,
                  const int32_t* set_end) {
  double sum = 0;
  for (int64_t slot = 0; slot < visible; ++slot) {
    while (set != set_end && *set < positions[slot]) ++set;
    if (set == set_end) break;
    if (*set == positions[slot]) sum += weights[slot];
  }
  return sum;
}

void hide_expired(float* logits, const std::vector<int32_t>& expires, int64_t visible, int32_t position) {
  if (expires.empty()) return;
  for (int64_t slot = 0; slot < visible; ++slot) {
    if (expires[slot] <= position) logits[slot] = -std::numeric_limits<float>::infinity();
  }
}

void mass_of_tile(const AttentionMassArgs& args, const Tile& tile, int64_t kv_head) {
  const PagedView& cache = args.cache;
  const int64_t dim = cache.head_dim;
  const int64_t group = args.q_heads / cache.kv_heads;
  const int64_t row = args.sequences[tile.first] * int64_t{cache.kv_heads} + kv_head;
  const int64_t length = cache.lengths[row];
  std::vector<int32_t> positions(length), expires(cache.expires ? length : 0);
  gather_positions(cache, row, 0, length, positions.data());
  if (cache.expires) gather_expires(cache, row, 0, length, expires.data());
  const Scratch keys(length * dim), queries(tile.count * group * dim), logits(tile.count * group * length);
  gather_keys(cache, row, 0, length, keys.data());
  for (int64_t i = 0; i < tile.count; ++i) {
    const float* from = args.queries.as<float>() + ((tile.first + i) * args.q_heads + kv_head * group) * dim;
    std::copy_n(from, group * dim, queries.data() + i * group * dim);
  }
  gemm_nt(queries.data(), tile.count * group, dim, keys.data(), length, dim, dim, logits.data(), length, args.scale);
  for (int64_t i = 0; i < tile.count; ++i) {
    const int64_t n = tile.first + i;
    const int64_t visible =
        std::upper_bound(positions.begin(), positions.end(), args.query_positions[n]) - positions.begin();
    for (int64_t g = 0; g < group; ++g) {
      float* weights = logits.data() + (i * group + g) * length;
      hide_expired(weights, expires, visible, args.query_positions[n]);
      const float most = largest(weights, visible);
      const bool sees_any = visible > 0 && most > -std::numeric_limits<float>::infinity();
      const float total = sees_any ? exp_row(weights, visible, most) : 1;
      const double sum = sum_in_set(weights, positions, visible, args.set_positions + args.set_begin[n],
                                    args.set_positions + args.set_begin[n + 1]);
      args.mass[n * args.q_heads + kv_head * group + g] = sees_any ? static_cast<float>(sum / total) : 0.0f;
    }
  }
}

}  // namespace

void attention_mass(const AttentionMassArgs& args) {
  const std::vector<Tile> tiles = tiles_of(args);
  const int64_t kv_heads = args.cache.kv_heads;
  parallel_for(static_cast<int64_t>(tiles.size()) * kv_heads,
               [&](int64_t task) { mass_of_tile(args, tiles[task / kv_heads], task % kv_heads); });
}

}  // namespace kv::cpu
