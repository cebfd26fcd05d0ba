#include "sim/replay/run_footprint.h"

#include <algorithm>

#include "kernels/attention_columns.h"
#include "sim/cache/cache.h"

namespace kv {

RunShape run_shape(std::span<const ResidentBound> resident, int64_t tokens) {
  RunShape shape{.sequences = std::ssize(resident), .tokens = tokens};
  for (const ResidentBound& bound : resident) {
    shape.pages += bound.pages();
    shape.longest = std::max(shape.longest, bound.longest());
  }
  return shape;
}

int64_t pages_at_once(const Policy& policy, const RunShape& shape) {
  return policy.admission->window() > 0 ? 0 : shape.pages;
}

Footprint run_footprint(const Backend& backend, const Source& source, const Policy& policy, const RunShape& shape,
                        std::span<Policy* const> onlookers) {
  const SourceInfo& info = source.info();
  const size_t element = bytes_of(backend.activation_type());
  const auto query = static_cast<size_t>(info.q_heads) * static_cast<size_t>(info.head_dim);
  const auto layers = static_cast<size_t>(info.layers);
  // A buffer of one number a slot of every row, as scores are.
  const size_t pitch = static_cast<size_t>(shape.longest + kPageTokens - 1) / kPageTokens * kPageTokens;
  const size_t slots = static_cast<size_t>(shape.sequences * info.kv_heads) * pitch;

  Footprint need;
  need.weights = policy.learned_bytes(info, backend.activation_type());
  need.activations = source.activation_bytes(shape.tokens, shape.sequences) +
                     static_cast<size_t>(shape.tokens) * query * element +
                     static_cast<size_t>(shape.logits) * sizeof(float);
  CacheShape cache{.layers = info.layers,
                   .kv_heads = info.kv_heads,
                   .head_dim = info.head_dim,
                   .page_bounds = policy.selection->needs().page_bounds,
                   .window = policy.admission->window()};
  bool column_sums = false;
  const size_t sums = slots * static_cast<size_t>(info.group()) * sizeof(float);
  const auto add = [&](const Scorer& scorer) {
    const Needs needs = scorer.needs();
    cache.column_width += needs.columns(info.group());
    column_sums |= needs.column_sums;
    const auto recent = static_cast<size_t>(shape.sequences * needs.window(shape.interval));
    need.activations += recent * (query * element * layers + sizeof(int32_t));  // and where they lie
    const bool late = needs.late_queries > 0;
    const auto q_heads = static_cast<size_t>(info.q_heads);
    if (late) need.activations += Suffixes::kMost * sums;
    if (late || needs.log_sums) need.activations += static_cast<size_t>(shape.tokens) * q_heads * sizeof(float);
    if (needs.log_sums) {
      need.activations += recent * q_heads * sizeof(float) * layers;
    }
    // An event holds the scores of every layer until all are scored.
    need.activations += slots * layers * sizeof(float) * (scorer.has_ties() ? 2 : 1);
  };
  if (policy.scorer) {
    add(*policy.scorer);
    need.activations += slots * (policy.allocation->decides_entries() ? layers : 1);  // masks
  }
  if (policy.admission->window() > 0) need.activations += slots * layers;  // a sweep's mask
  for (const Policy* onlooker : onlookers) {
    add(*onlooker->scorer);
    need.weights += onlooker->scorer->learned_bytes(info, backend.activation_type());
  }
  if (column_sums) need.activations += sums;
  need.cache = static_cast<size_t>(shape.pages) * page_bytes(cache, backend.activation_type());
  return need;
}

}  // namespace kv
