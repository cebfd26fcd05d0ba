#include "sim/replay/baseline_pass.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/error.h"
#include "kernels/pool.h"
#include "kernels/projected_norms.h"
#include "sim/replay/replay.h"

namespace kv {

namespace {

constexpr int kPlainBlock = 1024;     // tokens a step when no statistics are wanted
constexpr int64_t kMostBlocks = 512;  // rows of statistics a head; without a bound, a block of 1 would make them T x T

// Collects the full-cache pass of a replay that never evicts.
class Collector final : public Observer {
 public:
  Collector(Backend& backend, Source& source, Baseline& baseline)
      : backend_(backend), source_(source), info_(source.info()), baseline_(baseline) {
    const int64_t sequences = baseline.sequences;
    const int64_t tokens = baseline.max_tokens;
    const BaselineNeeds& has = baseline.has;
    const DType type = backend.activation_type();
    const int64_t query = static_cast<int64_t>(info_.q_heads) * info_.head_dim;
    const int64_t key = static_cast<int64_t>(info_.kv_heads) * info_.head_dim;
    for (int layer = 0; layer < info_.layers; ++layer) {
      BaselineLayer& collected = baseline.layers.emplace_back();
      if (has.block_sums)
        collected.block_sums = zeros(DType::f32, sequences * info_.kv_heads * baseline.blocks * tokens);
      if (has.block_max) collected.block_max = zeros(DType::f32, sequences * info_.q_heads * baseline.blocks * tokens);
      if (has.value_norms) collected.value_norms = zeros(DType::f32, sequences * tokens * info_.q_heads);
      if (has.outputs) collected.outputs = zeros(type, sequences * tokens * query);
      if (has.projections) {
        collected.queries = zeros(type, sequences * tokens * query);
        collected.keys = zeros(type, sequences * tokens * key);
        collected.values = zeros(type, sequences * tokens * key);
      }
    }
  }

  ObserverNeeds observer_needs() const override {
    return {.column_sums = baseline_.has.block_sums, .column_max = baseline_.has.block_max, .baseline = {}};
  }

  void attended(const LayerView& view, ConstRef outputs) override {
    BaselineLayer& collected = baseline_.layers[static_cast<size_t>(view.layer)];
    if (collected.block_sums) collect_sums(view, collected.block_sums);
    if (collected.block_max) collect_max(view, collected.block_max);
    if (collected.value_norms) collect_norms(view, collected.value_norms);
    const int64_t query = static_cast<int64_t>(info_.q_heads) * info_.head_dim;
    const int64_t key = static_cast<int64_t>(info_.kv_heads) * info_.head_dim;
    if (collected.outputs) collect_rows(view, outputs, collected.outputs, query);
    if (!collected.queries) return;
    collect_rows(view, view.projections.queries, collected.queries, query);
    collect_rows(view, view.projections.keys, collected.keys, key);
    collect_rows(view, view.projections.values, collected.values, key);
  }

  void block_done(const Block& block, const TokenLosses& losses) override {
    if (losses.nll.empty()) return;
    for (const Segment& segment : block.segments) {
      const size_t s = static_cast<size_t>(segment.sequence);
      const auto append = [&](auto& to, const auto& from) {
        to.insert(to.end(), from.begin() + segment.first_token, from.begin() + segment.first_token + segment.count);
      };
      append(baseline_.nll[s], losses.nll);
      append(baseline_.entropy[s], losses.entropy);
      append(baseline_.argmax[s], losses.argmax);
    }
  }

 private:
  Tensor zeros(DType type, int64_t elements) {
    Tensor tensor(backend_, type, elements);
    tensor.fill_zero();
    return tensor;
  }

  int64_t block_of(const Segment& segment) const { return segment.first_position / baseline_.has.statistics_block; }

  // The slot of a key is its position: nothing was evicted.
  void collect_sums(const LayerView& view, Tensor& sums) {
    const Slots<float> mean = mean_.reserve_slots<float>(backend_, view.rows(), view.column_sums.pitch);
    backend_.group_mean({.input = view.column_sums,
                         .output = mean,
                         .lengths = view.cache.lengths,
                         .rows = view.rows(),
                         .group = view.group()});
    copy_columns(view, mean, 1, sums);
  }

  void collect_max(const LayerView& view, Tensor& max) { copy_columns(view, view.column_max, view.group(), max); }

  // From [rows · vectors, pitch] → to [rows · vectors, blocks, max_tokens] at the segment's block.
  void copy_columns(const LayerView& view, Slots<const float> from, int vectors, Tensor& to) {
    for (const Segment& segment : view.segments) {
      if (segment.count == 0) continue;
      const size_t bytes = static_cast<size_t>(segment.first_position + segment.count) * sizeof(float);
      for (int head = 0; head < view.kv_heads; ++head) {
        const int64_t row = segment.sequence * view.kv_heads + head;
        for (int64_t vector = row * vectors; vector < (row + 1) * vectors; ++vector) {
          const int64_t to_row = vector * baseline_.blocks + block_of(segment);
          backend_.copy(to.at(to_row * baseline_.max_tokens).data, from.row(vector), bytes);
        }
      }
    }
  }

  void collect_norms(const LayerView& view, Tensor& norms) {
    const int64_t tokens = total_tokens(view);
    norms_.reserve(backend_, DType::f32, tokens * info_.q_heads);
    backend_.projected_norms({.values = view.projections.values,
                              .output_weight = source_.output_weight(view.layer),
                              .norms = norms_.ref().as<float>(),
                              .tokens = tokens,
                              .q_heads = info_.q_heads,
                              .kv_heads = info_.kv_heads,
                              .head_dim = info_.head_dim,
                              .width = info_.width});
    collect_rows(view, norms_.ref(), norms, info_.q_heads);
  }

  static int64_t total_tokens(const LayerView& view) {
    int64_t tokens = 0;
    for (const Segment& segment : view.segments) tokens += segment.count;
    return tokens;
  }

  // Packed rows of `width` elements → [sequence, position].
  void collect_rows(const LayerView& view, ConstRef from, Tensor& to, int64_t width) {
    const size_t element = bytes_of(from.dtype);
    for (const Segment& segment : view.segments) {
      if (segment.count == 0) continue;
      const int64_t position = segment.sequence * baseline_.max_tokens + segment.first_position;
      backend_.copy(to.at(position * width).data,
                    static_cast<const char*>(from.data) + static_cast<size_t>(segment.first_token * width) * element,
                    static_cast<size_t>(segment.count * width) * element);
    }
  }

  Backend& backend_;
  Source& source_;
  const SourceInfo& info_;
  Baseline& baseline_;
  Tensor mean_, norms_;
};

}  // namespace

Baseline compute_baseline(Backend& backend, Source& source, std::span<const std::span<const int32_t>> sequences,
                          const BaselineNeeds& needs) {
  KV_CHECK(needs.statistics_block > 0 || !(needs.block_sums || needs.block_max));
  Baseline baseline{.sequences = static_cast<int>(sequences.size()), .has = needs};
  for (const auto& ids : sequences) {
    baseline.lengths.push_back(static_cast<int32_t>(ids.size()));
    baseline.max_tokens = std::max<int64_t>(baseline.max_tokens, std::ssize(ids));
  }
  const bool statistics = needs.block_sums || needs.block_max;
  const int block = statistics ? needs.statistics_block : kPlainBlock;
  baseline.blocks = (baseline.max_tokens + block - 1) / block;
  if (statistics && baseline.blocks > kMostBlocks) {
    throw UserError(
        fmt::format("full-cache pass: attention statistics in blocks of {} tokens make {} blocks of {} tokens, "
                    "expected at most {} (choose budgets that are multiples of the interval)",
                    block, baseline.blocks, baseline.max_tokens, kMostBlocks));
  }
  baseline.nll.resize(sequences.size());
  baseline.entropy.resize(sequences.size());
  baseline.argmax.resize(sequences.size());

  Policy full = policy_of("full", nullptr);
  Collector collector(backend, source, baseline);
  Observer* const observers[] = {&collector};
  const Schedule schedule = full_schedule(baseline.lengths, block);
  const ReplayResult result = replay({.backend = backend,
                                      .source = source,
                                      .policy = full,
                                      .sequences = sequences,
                                      .schedule = schedule,
                                      .observers = observers});
  baseline.pass_seconds = result.total_seconds;
  return baseline;
}

}  // namespace kv
