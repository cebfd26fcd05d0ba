#include "sim/budget/oracle_importance.h"

#include <algorithm>

#include "kernels/check.h"
#include "sim/cache/to_host.h"

namespace kv {

ImportanceOptions ImportanceOptions::read_unit(Params& params) {
  ImportanceOptions options;
  const std::string group =
      params.get("group", "mean", {"mean", "max", "sum"}, "how the query heads of a KV head share its importance");
  options.group = group == "max" ? Group::kMax : group == "sum" ? Group::kSum : Group::kMean;
  options.normalise =
      params.get("normalise", "layer", {"layer", "none"},
                 "unit of eviction losses: a layer's total importance, or attention times norm") == "layer"
          ? Normalise::kLayer
          : Normalise::kNone;
  return options;
}

ImportanceOptions ImportanceOptions::read(Params& params) {
  const int block = params.get("block", 0, "query block of the attention statistics in tokens; 0: the case's interval");
  if (block < 0) params.fail("block", "expected 0 or more");
  ImportanceOptions options = read_unit(params);
  options.block = block;
  options.future = params.get("future", 0, "future queries that importance looks at, a multiple of block; 0: all");
  if (options.future < 0) params.fail("future", "expected 0 or more");
  if (options.future > 0 && (options.block == 0 || options.future % options.block != 0)) {
    params.fail("future", "expected a multiple of 'block', which must be given with it");
  }
  return options;
}

void add_query_head(ImportanceOptions::Group rule, int group, std::span<const float> attention_max, const float* norms,
                    size_t stride, std::span<float> importance) {
  const float share = rule == ImportanceOptions::Group::kMean ? 1.0F / static_cast<float>(group) : 1.0F;
  for (size_t j = 0; j < importance.size(); ++j) {
    const float value = attention_max[j] * norms[j * stride];
    float& sum = importance[j];
    sum = rule == ImportanceOptions::Group::kMax ? std::max(sum, value) : sum + value * share;
  }
}

void take_block_max(Backend& backend, const Baseline& baseline, int layer, int64_t q_head_row, int64_t block,
                    std::span<float> attention_max) {
  const size_t keys = std::min(attention_max.size(), static_cast<size_t>((block + 1) * baseline.has.statistics_block));
  const float* from = baseline.layers[static_cast<size_t>(layer)]
                          .block_max.at((q_head_row * baseline.blocks + block) * baseline.max_tokens)
                          .as<float>();
  const auto attention = to_host(backend, from, static_cast<int64_t>(keys));
  for (size_t j = 0; j < keys; ++j) attention_max[j] = std::max(attention_max[j], attention[j]);
}

int64_t block_after(const Baseline& baseline, int32_t tokens_seen) {
  const int64_t block = baseline.has.statistics_block;
  return (tokens_seen + block - 1) / block;
}

std::vector<float> importance_after(Backend& backend, const SourceInfo& source, const Baseline& baseline,
                                    const ImportanceOptions& options, int layer, int row, int32_t tokens_seen) {
  KV_CHECK(baseline.has.block_max && baseline.has.value_norms);
  const int64_t sequence = row / source.kv_heads, size = baseline.has.statistics_block;
  const int64_t length = baseline.lengths[static_cast<size_t>(sequence)];
  const int64_t first = block_after(baseline, tokens_seen);
  int64_t end = (length + size - 1) / size;
  if (options.future > 0) end = std::min(end, first + options.future / size);
  const auto norms = to_host(backend,
                             baseline.layers[static_cast<size_t>(layer)]
                                 .value_norms.at(sequence * baseline.max_tokens * source.q_heads)
                                 .as<float>(),
                             int64_t{tokens_seen} * source.q_heads);
  std::vector<float> importance(static_cast<size_t>(tokens_seen), 0.0F);
  for (int g = 0; g < source.group(); ++g) {
    const int q_head = row % source.kv_heads * source.group() + g;
    std::vector<float> attention_max(importance.size(), 0.0F);
    for (int64_t block = first; block < end; ++block) {
      take_block_max(backend, baseline, layer, sequence * source.q_heads + q_head, block, attention_max);
    }
    add_query_head(options.group, source.group(), attention_max, norms.data() + q_head,
                   static_cast<size_t>(source.q_heads), importance);
  }
  return importance;
}

}  // namespace kv
