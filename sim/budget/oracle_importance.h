#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "sim/model/source_info.h"
#include "sim/policy/baseline.h"
#include "sim/policy/params.h"

namespace kv {

// Oracle importance (002 Eq. 4) of cache entries:
//   I_j = combine over the query heads h of a KV head of (max over future queries i of A^(h)_ij) · ‖v_j W_O^(h)‖₂.
// What 002 leaves open, each reading an option of whatever judges or divides by importance:
//   group      002 indexes heads and does not say how the query heads of a group share a KV head: mean, max or sum.
//   future     002's K_max (its value is not printed): the first N queries of the future, all where fewer are left;
//              0: all. Statistics come in whole blocks and metrics of one run share them, so N must be a multiple of
//              `block`, which must be given with it: rounding would depend on the other metrics.
//   normalise  002 App. E, "intra-layer normalization", without a formula. layer: Ĩ = I / Σ I over the KV heads of the
//              layer and the entries that the event is judged over, so that a layer's total is 1. At a one-shot event
//              those are all positions of the context, as in 002; at a later one the entries still resident. none: I.
struct ImportanceOptions {
  enum class Group : uint8_t { kMean, kMax, kSum };
  enum class Normalise : uint8_t { kLayer, kNone };
  Group group = Group::kMean;
  Normalise normalise = Normalise::kLayer;
  int block = 0;   // of the statistics, in tokens; 0: the case's interval
  int future = 0;  // in queries; 0: all

  static ImportanceOptions read(Params& params);
  // `group` and `normalise` alone: for a future that is not a run of blocks.
  static ImportanceOptions read_unit(Params& params);
  BaselineNeeds needs() const { return {.statistics_block = block, .block_max = true, .value_norms = true}; }
  // Ĩ = I / divisor(Σ I over the layer).
  double divisor(double layer_total) const { return normalise == Normalise::kLayer ? layer_total : 1.0; }
};

// One query head's part in the importance of its KV head, of which it is one of `group`: adds attention_max[j] ·
// norms[j · stride] to importance[j], or as the option says. A KV head starts from zeros.
void add_query_head(ImportanceOptions::Group rule, int group, std::span<const float> attention_max, const float* norms,
                    size_t stride, std::span<float> importance);

// Raises attention_max[j] to the largest attention that the queries of one statistics block of the full-cache pass pay
// to key j, j < attention_max.size(). Keys beyond the block are left as they are: its queries do not see them.
void take_block_max(Backend& backend, const Baseline& baseline, int layer, int64_t q_head_row, int64_t block,
                    std::span<float> attention_max);

// The first statistics block that begins at or after `tokens_seen`: where the future of an event begins.
int64_t block_after(const Baseline& baseline, int32_t tokens_seen);

// I [tokens_seen] of a row (sequence · kv_heads + head) at an event; all zeros where no block begins after it.
std::vector<float> importance_after(Backend& backend, const SourceInfo& source, const Baseline& baseline,
                                    const ImportanceOptions& options, int layer, int row, int32_t tokens_seen);

}  // namespace kv
