#include "kernels/retained_mass.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

constexpr int64_t kQueryTile = 16;

struct Split {
  float* kept;     // exponentials of the retained keys, 0 elsewhere
  float* evicted;  // of the others
};

// One query head of one query: kept and evicted outputs are still multiplied by the softmax's denominator.
void compare(const RetainedMassArgs& args, const Split& outputs, double kept_mass, double evicted_mass, int64_t index) {
  const double total = kept_mass + evicted_mass;
  double difference = 0, product = 0, full_square = 0, kept_square = 0;
  for (int64_t d = 0; d < args.cache.head_dim; ++d) {
    const double full = (double{outputs.kept[d]} + outputs.evicted[d]) / total;
    const double kept = kept_mass > 0 ? outputs.kept[d] / kept_mass : 0.0;
    difference += (full - kept) * (full - kept);
    product += full * kept;
    full_square += full * full;
    kept_square += kept * kept;
  }
  const double norms = std::sqrt(full_square) * std::sqrt(kept_square);
  args.evicted[index] = static_cast<float>(evicted_mass / total);
  args.error[index] = static_cast<float>(std::sqrt(difference));
  args.cosine[index] = norms > 0 ? static_cast<float>(product / norms) : 0.0f;
}

// Queries of one sequence.
struct Tile {
  int64_t first;
  int64_t count;
};

std::vector<Tile> tiles_of(const RetainedMassArgs& args) {
  std::vector<Tile> tiles;
  for (int64_t n = 0; n < args.count; ++n) {
    KV_CHECK(n == 0 || args.sequences[n - 1] <= args.sequences[n]);
    const bool goes_on = n > 0 && args.sequences[n] == args.sequences[n - 1] && tiles.back().count < kQueryTile;
    if (!goes_on) tiles.push_back({n, 0});
    ++tiles.back().count;
  }
  return tiles;
}

// keep[j] = 1 for the tokens j < seen that the row holds, else 0.
void mark_retained(const RetainedMassArgs& args, int64_t row, std::vector<uint8_t>& keep) {
  const PagedView& cache = args.cache;
  for_page_runs(cache, row, 0, cache.lengths[row], [&](int64_t page, int64_t place, int64_t, int64_t run) {
    const int32_t* positions = cache.positions + page * kPageTokens + place;
    for (int64_t i = 0; i < run; ++i) {
      KV_CHECK(positions[i] >= 0 && positions[i] < args.tokens);
      if (positions[i] < std::ssize(keep)) keep[static_cast<size_t>(positions[i])] = 1;
    }
  });
}

// longest[j] = the largest ‖v‖ of the tokens [0, j].
void largest_norms(const float* values, int64_t stride, int64_t dim, int64_t seen, float* longest) {
  for (int64_t j = 0; j < seen; ++j) {
    const float* value = values + j * stride;
    const auto norm = static_cast<float>(std::sqrt(dot<double>(value, value, dim)));
    longest[j] = std::max(j > 0 ? longest[j - 1] : 0.0f, norm);
  }
}

void measure_tile(const RetainedMassArgs& args, int64_t kv_head, Tile tile) {
  const PagedView& cache = args.cache;
  const int64_t dim = cache.head_dim, kv_heads = cache.kv_heads;
  const int64_t group = args.q_heads / kv_heads;
  const int64_t rows = tile.count * group;
  const int64_t stride = kv_heads * dim;
  const int64_t sequence = args.sequences[tile.first];
  const int32_t* positions = args.positions + tile.first;
  const int64_t seen = int64_t{*std::max_element(positions, positions + tile.count)} + 1;
  KV_CHECK(seen <= args.tokens);
  const Scratch queries(rows * dim), kept(rows * seen), evicted(rows * seen), outputs(2 * rows * dim), longest(seen);
  for (int64_t i = 0; i < tile.count; ++i) {
    const int64_t token = sequence * args.tokens + positions[i];
    std::copy_n(args.queries.as<float>() + (token * args.q_heads + kv_head * group) * dim, group * dim,
                queries.data() + i * group * dim);
  }
  const int64_t first_vector = (sequence * args.tokens * kv_heads + kv_head) * dim;
  gemm_nt(queries.data(), rows, dim, args.keys.as<float>() + first_vector, seen, stride, dim, kept.data(), seen,
          args.scale);

  std::vector<uint8_t> keep(static_cast<size_t>(seen));
  mark_retained(args, sequence * kv_heads + kv_head, keep);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t visible = int64_t{positions[r / group]} + 1;
    const Split split{.kept = kept.data() + r * seen, .evicted = evicted.data() + r * seen};
    exp_row(split.kept, visible, largest(split.kept, visible));
    std::fill(split.kept + visible, split.kept + seen, 0.0f);
    std::fill(split.evicted + visible, split.evicted + seen, 0.0f);
    const uint8_t* stays = keep.data();
#pragma omp simd
    for (int64_t j = 0; j < visible; ++j) {
      const float weight = split.kept[j];
      split.kept[j] = stays[j] ? weight : 0.0f;
      split.evicted[j] = stays[j] ? 0.0f : weight;
    }
  }
  const float* values = args.values.as<float>() + first_vector;
  largest_norms(values, stride, dim, seen, longest.data());
  float* kept_outputs = outputs.data();
  float* evicted_outputs = outputs.data() + rows * dim;
  gemm_nn(kept.data(), rows, seen, values, dim, stride, seen, kept_outputs, dim);
  gemm_nn(evicted.data(), rows, seen, values, dim, stride, seen, evicted_outputs, dim);
  for (int64_t i = 0; i < tile.count; ++i) {
    args.longest[(tile.first + i) * kv_heads + kv_head] = longest.data()[positions[i]];
  }
  for (int64_t r = 0; r < rows; ++r) {
    // Both masses are sums, not 1 − the other: a small evicted mass keeps its digits.
    const auto sum = [&](const float* weights) {
      return sum_of<double>(seen, [=](int64_t j) { return double{weights[j]}; });
    };
    compare(args, {.kept = kept_outputs + r * dim, .evicted = evicted_outputs + r * dim}, sum(kept.data() + r * seen),
            sum(evicted.data() + r * seen), (tile.first + r / group) * args.q_heads + kv_head * group + r % group);
  }
}

}  // namespace

void retained_mass(const RetainedMassArgs& args) {
  const std::vector<Tile> tiles = tiles_of(args);
  const int64_t kv_heads = args.cache.kv_heads;
  parallel_for(static_cast<int64_t>(tiles.size()) * kv_heads,
               [&](int64_t task) { measure_tile(args, task % kv_heads, tiles[static_cast<size_t>(task / kv_heads)]); });
}

}  // namespace kv::cpu
