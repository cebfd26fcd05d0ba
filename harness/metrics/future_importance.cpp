#include "harness/metrics/future_importance.h"

#include <algorithm>
#include <utility>

#include "harness/metrics/residents.h"
#include "kernels/check.h"

namespace kv {

FutureImportance::Moments FutureImportance::events_of(const CaseView& view) {
  Moments events(view.samples.size());
  for (size_t s = 0; s < events.size(); ++s) {
    int32_t seen = 0;
    for (const Step& step : *view.schedule) {
      seen += step.counts[s];
      if (step.keep[s] >= 0) events[s].push_back(seen);
    }
  }
  return events;
}

FutureImportance::Moments FutureImportance::ends_of_blocks(const CaseView& view, int every) {
  Moments ends(view.samples.size());
  for (size_t s = 0; s < ends.size(); ++s) {
    int32_t seen = 0;
    for (const Step& step : *view.schedule) {
      const int32_t multiples = seen / every;
      seen += step.counts[s];
      if (seen / every > multiples) ends[s].push_back(seen);
    }
  }
  return ends;
}

void FutureImportance::begin(const CaseView& view, Moments moments) {
  KV_CHECK(view.baseline && view.baseline->has.block_max && view.baseline->has.statistics_block > 0);
  KV_CHECK(options_.future % view.baseline->has.statistics_block == 0);
  view_ = view;
  moments_ = std::move(moments);
  layers_.clear();
  layers_.resize(view.baseline->layers.size());
}

const char* FutureImportance::missing() const {
  return view_.batch.source->has_output_weight ? nullptr : "the source has no output projection";
}

std::span<const float> FutureImportance::at(int layer, int row, int32_t tokens_seen) {
  auto& rows = layers_[static_cast<size_t>(layer)];
  if (rows.empty()) build(layer);
  const int64_t block = block_after(*view_.baseline, tokens_seen);
  for (const Table& table : rows[static_cast<size_t>(row)]) {
    if (table.first_block == block) return std::span(table.importance).first(static_cast<size_t>(tokens_seen));
  }
  return {};
}

// The distinct blocks with which the future of a moment begins; ascending.
std::vector<int64_t> FutureImportance::first_blocks(int sequence) const {
  const size_t s = static_cast<size_t>(sequence);
  const int64_t length = view_.baseline->lengths[s];
  std::vector<int64_t> blocks;
  for (const int32_t seen : moments_[s]) {
    const int64_t block = block_after(*view_.baseline, seen);
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
    const auto blocks = first_blocks(s);
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
// maximum over it grows from moment to moment and each block is read once.
void FutureImportance::add_head(int layer, int sequence, int q_head, std::span<const float> norms, Row& row) {
  const SourceInfo& source = *view_.batch.source;
  const int64_t size = view_.baseline->has.statistics_block;
  const int64_t length = view_.baseline->lengths[static_cast<size_t>(sequence)];
  const int64_t blocks = (length + size - 1) / size;
  std::vector<float> attention_max(static_cast<size_t>(length), 0);
  const int64_t head_row = static_cast<int64_t>(sequence) * source.q_heads + q_head;
  int64_t read = blocks;  // `attention_max` is over blocks [read, end of the future)
  for (auto table = row.rbegin(); table != row.rend(); ++table) {
    if (options_.future > 0) {
      std::fill(attention_max.begin(), attention_max.end(), 0.0F);
      read = std::min(blocks, table->first_block + options_.future / size);
    }
    while (read > table->first_block) {
      take_block_max(*view_.batch.backend, *view_.baseline, layer, head_row, --read, attention_max);
    }
    add_query_head(options_.group, source.group(), attention_max, norms.data() + q_head,
                   static_cast<size_t>(source.q_heads), table->importance);
  }
}

}  // namespace kv
