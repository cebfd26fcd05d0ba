#include "harness/metrics/future_importance.h"

#include <algorithm>

#include "harness/metrics/residents.h"
#include "kernels/check.h"

namespace kv {

FutureImportance::Options FutureImportance::options(Params& params) {
  Options options;
  options.block = params.get("block", 0, "query block of the attention statistics in tokens; 0: the case's interval");
  if (options.block < 0) params.fail("block", "expected 0 or more");
  const std::string group =
      params.get("group", "mean", {"mean", "max", "sum"}, "how the query heads of a KV head share its importance");
  options.group = group == "max" ? Group::max : group == "sum" ? Group::sum : Group::mean;
  options.normalise =
      params.get("normalise", "layer", {"layer", "none"},
                 "unit of eviction losses: a layer's total importance, or attention times norm") == "layer"
          ? Normalise::layer
          : Normalise::none;
  options.future = params.get("future", 0, "future queries that importance looks at, a multiple of block; 0: all");
  if (options.future < 0) params.fail("future", "expected 0 or more");
  if (options.future > 0 && (options.block == 0 || options.future % options.block != 0)) {
    params.fail("future", "expected a multiple of 'block', which must be given with it");
  }
  return options;
}

void FutureImportance::begin(const CaseView& view) {
  KV_CHECK(view.baseline && view.baseline->has.block_max && view.baseline->has.statistics_block > 0);
  KV_CHECK(options_.future % view.baseline->has.statistics_block == 0);
  view_ = view;
  layers_.clear();
  layers_.resize(view.baseline->layers.size());
}

const char* FutureImportance::missing() const {
  return view_.batch.source->has_output_weight ? nullptr : "the source has no output projection";
}

std::span<const float> FutureImportance::at(int layer, int row, int32_t tokens_seen) {
  auto& rows = layers_[static_cast<size_t>(layer)];
  if (rows.empty()) build(layer);
  const int64_t block = block_after(tokens_seen);
  for (const Table& table : rows[static_cast<size_t>(row)]) {
    if (table.first_block == block) return std::span(table.importance).first(static_cast<size_t>(tokens_seen));
  }
  return {};
}

int64_t FutureImportance::block_after(int32_t tokens_seen) const {
  const int64_t block = view_.baseline->has.statistics_block;
  return (tokens_seen + block - 1) / block;
}

// The distinct blocks with which the future of an event begins; ascending.
std::vector<int64_t> FutureImportance::event_blocks(int sequence) const {
  const size_t s = static_cast<size_t>(sequence);
  const int64_t length = view_.baseline->lengths[s];
  std::vector<int64_t> blocks;
  int32_t seen = 0;
  for (const Step& step : *view_.schedule) {
    seen += step.counts[s];
    if (step.keep[s] < 0) continue;
    const int64_t block = block_after(seen);
    const bool has_future = block * view_.baseline->has.statistics_block < length;
    if (has_future && (blocks.empty() || blocks.back() != block)) blocks.push_back(block);
  }
  return blocks;
}

void FutureImportance::build(int layer) {
  const SourceInfo& source = *view_.batch.source;
  const Baseline& baseline = *view_.baseline;
  const Tensor& norms = baseline.layers[static_cast<size_t>(layer)].value_norms;
  auto& rows = layers_[static_cast<size_t>(layer)];
  rows.resize(static_cast<size_t>(baseline.sequences * source.kv_heads));
  for (int s = 0; s < baseline.sequences; ++s) {
    const int64_t length = baseline.lengths[static_cast<size_t>(s)];
    const auto blocks = event_blocks(s);
    if (blocks.empty()) continue;
    const auto host_norms = to_host(
        *view_.batch.backend, norms.at(s * baseline.max_tokens * source.q_heads).as<float>(), length * source.q_heads);
    for (int head = 0; head < source.q_heads; ++head) {
      Row& row = rows[static_cast<size_t>(s * source.kv_heads + head / source.group())];
      if (row.empty()) {
        for (const int64_t block : blocks) {
          const int64_t tokens = std::min(length, block * baseline.has.statistics_block);
          row.push_back({.first_block = block, .importance = std::vector<float>(static_cast<size_t>(tokens), 0)});
        }
      }
      add_head(layer, s, head, host_norms, row);
    }
  }
}

// One head's statistics come to the host block by block, newest first: where the future is all that follows, the
// maximum over it grows from event to event and each block is read once.
void FutureImportance::add_head(int layer, int sequence, int q_head, std::span<const float> norms, Row& row) {
  const SourceInfo& source = *view_.batch.source;
  const int64_t size = view_.baseline->has.statistics_block;
  const int64_t length = view_.baseline->lengths[static_cast<size_t>(sequence)];
  const int64_t blocks = (length + size - 1) / size;
  const float share = options_.group == Group::mean ? 1.0F / static_cast<float>(source.group()) : 1.0F;
  std::vector<float> most(static_cast<size_t>(length), 0);
  int64_t read = blocks;  // `most` is over blocks [read, end of the future)
  for (auto table = row.rbegin(); table != row.rend(); ++table) {
    if (options_.future > 0) {
      std::fill(most.begin(), most.end(), 0.0F);
      read = std::min(blocks, table->first_block + options_.future / size);
    }
    while (read > table->first_block) add_block(layer, sequence, q_head, --read, most);
    for (size_t j = 0; j < table->importance.size(); ++j) {
      const float own = most[j] * norms[j * static_cast<size_t>(source.q_heads) + static_cast<size_t>(q_head)];
      float& sum = table->importance[j];
      sum = options_.group == Group::max ? std::max(sum, own) : sum + own * share;
    }
  }
}

void FutureImportance::add_block(int layer, int sequence, int q_head, int64_t block, std::vector<float>& most) {
  const Baseline& baseline = *view_.baseline;
  const int64_t head_row = static_cast<int64_t>(sequence) * view_.batch.source->q_heads + q_head;
  // Queries of a block see no key beyond it.
  const size_t keys = std::min(most.size(), static_cast<size_t>((block + 1) * baseline.has.statistics_block));
  const float* from = baseline.layers[static_cast<size_t>(layer)]
                          .block_max.at((head_row * baseline.blocks + block) * baseline.max_tokens)
                          .as<float>();
  scratch_.resize(keys);
  view_.batch.backend->download(scratch_.data(), from, keys * sizeof(float));
  for (size_t j = 0; j < keys; ++j) most[j] = std::max(most[j], scratch_[j]);
}

}  // namespace kv
