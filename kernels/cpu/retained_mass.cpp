#include "kernels/retained_mass.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
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
  for (int64_t d = 0; d < args.head_dim; ++d) {
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

void measure_tile(const RetainedMassArgs& args, int64_t kv_head, int64_t first, int64_t count) {
  const int64_t dim = args.head_dim;
  const int64_t group = args.q_heads / args.kv_heads;
  const int64_t rows = count * group;
  const int64_t stride = args.kv_heads * dim;
  const int64_t seen =
      int64_t{*std::max_element(args.query_positions + first, args.query_positions + first + count)} + 1;
  KV_CHECK(seen <= args.tokens);
  const Scratch queries(rows * dim), kept(rows * seen), evicted(rows * seen), outputs(2 * rows * dim);
  for (int64_t i = 0; i < count; ++i) {
    const float* from = args.queries.as<float>() + ((first + i) * args.q_heads + kv_head * group) * dim;
    std::copy_n(from, group * dim, queries.data() + i * group * dim);
  }
  gemm_nt(queries.data(), rows, dim, args.keys.as<float>() + kv_head * dim, seen, stride, dim, kept.data(), seen,
          args.scale);

  const uint8_t* keep = args.keep + kv_head * args.tokens;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t visible = int64_t{args.query_positions[first + r / group]} + 1;
    const Split split{.kept = kept.data() + r * seen, .evicted = evicted.data() + r * seen};
    exp_row(split.kept, visible, largest(split.kept, visible));
    std::fill(split.kept + visible, split.kept + seen, 0.0f);
    std::fill(split.evicted + visible, split.evicted + seen, 0.0f);
#pragma omp simd
    for (int64_t j = 0; j < visible; ++j) {
      const float weight = split.kept[j];
      split.kept[j] = keep[j] ? weight : 0.0f;
      split.evicted[j] = keep[j] ? 0.0f : weight;
    }
  }
  const float* values = args.values.as<float>() + kv_head * dim;
  float* kept_outputs = outputs.data();
  float* evicted_outputs = outputs.data() + rows * dim;
  gemm_nn(kept.data(), rows, seen, values, dim, stride, seen, kept_outputs, dim);
  gemm_nn(evicted.data(), rows, seen, values, dim, stride, seen, evicted_outputs, dim);
  for (int64_t r = 0; r < rows; ++r) {
    // Both masses are sums, not 1 − the other: a small evicted mass keeps its digits.
    const auto sum = [&](const float* weights) {
      return sum_of<double>(seen, [=](int64_t j) { return double{weights[j]}; });
    };
    compare(args, {.kept = kept_outputs + r * dim, .evicted = evicted_outputs + r * dim}, sum(kept.data() + r * seen),
            sum(evicted.data() + r * seen), (first + r / group) * args.q_heads + kv_head * group + r % group);
  }
}

}  // namespace

void retained_mass(const RetainedMassArgs& args) {
  const int64_t tiles = (args.count + kQueryTile - 1) / kQueryTile;
  parallel_for(tiles * args.kv_heads, [&](int64_t task) {
    const int64_t first = task / args.kv_heads * kQueryTile;
    measure_tile(args, task % args.kv_heads, first, std::min(kQueryTile, args.count - first));
  });
}

}  // namespace kv::cpu
