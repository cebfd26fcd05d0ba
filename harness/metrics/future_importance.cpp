#include "harness/metrics/future_importance.h"

#include <algorithm>

#include "harness/metrics/residents.h"
#include "kernels/check.h"

namespace kv {

FutureImportance::Group FutureImportance::group_option(Params& params) {
  const std::string group =
      params.get("group", "mean", {"mean", "max", "sum"}, "how the query heads of a KV head share its importance");
  return group == "max" ? Group::max : group == "sum" ? Group::sum : Group::mean;
}

BaselineNeeds FutureImportance::needs(Params& params) {
  const int block = params.get("block", 0, "query block of the attention statistics in tokens; 0: the case's interval");
  if (block < 0) params.fail("block", "expected 0 or more");
  return {.statistics_block = block, .block_max = true, .value_norms = true};
}

void FutureImportance::begin(const CaseView& view, Group group) {
  KV_CHECK(view.baseline && view.baseline->has.block_max && view.baseline->has.statistics_block > 0);
  view_ = view;
  group_ = group;
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

// One head's statistics come to the host block by block, newest first, so that the maximum over all later queries needs
// no second table.
void FutureImportance::add_head(int layer, int sequence, int q_head, std::span<const float> norms, Row& row) {
  const SourceInfo& source = *view_.batch.source;
  const Baseline& baseline = *view_.baseline;
  const Tensor& block_max = baseline.layers[static_cast<size_t>(layer)].block_max;
  const int64_t size = baseline.has.statistics_block;
  const int64_t length = baseline.lengths[static_cast<size_t>(sequence)];
  const int64_t head_row = static_cast<int64_t>(sequence) * source.q_heads + q_head;
  const float share = group_ == Group::mean ? 1.0F / static_cast<float>(source.group()) : 1.0F;
  std::vector<float> later(static_cast<size_t>(length), 0);
  scratch_.resize(static_cast<size_t>(length));
  auto table = row.rbegin();
  for (int64_t b = (length + size - 1) / size - 1; table != row.rend(); --b) {
    // Queries of block b see no key beyond it.
    const size_t keys = static_cast<size_t>(std::min(length, (b + 1) * size));
    const float* from = block_max.at((head_row * baseline.blocks + b) * baseline.max_tokens).as<float>();
    view_.batch.backend->download(scratch_.data(), from, keys * sizeof(float));
    for (size_t j = 0; j < keys; ++j) later[j] = std::max(later[j], scratch_[j]);
    if (b != table->first_block) continue;
    for (size_t j = 0; j < table->importance.size(); ++j) {
      const float own = later[j] * norms[j * static_cast<size_t>(source.q_heads) + static_cast<size_t>(q_head)];
      float& sum = table->importance[j];
      sum = group_ == Group::max ? std::max(sum, own) : sum + own * share;
    }
    ++table;
  }
}

}  // namespace kv
