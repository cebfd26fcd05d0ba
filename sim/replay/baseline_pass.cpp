#include "sim/replay/baseline_pass.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/error.h"
#include "kernels/pool.h"
#include "kernels/projected_norms.h"
#include "sim/replay/replay.h"

namespace kv {

namespace {

constexpr int64_t kMostBlocks = 512;  // rows of statistics a head; without a bound, a block of 1 would make them T x T

// Elements a layer of each tensor that a Baseline may hold; 0 = not needed.
struct LayerElements {
  int64_t block_sums, block_max, value_norms, outputs, queries, keys, values;

  LayerElements(const BaselineNeeds& needs, const SourceInfo& info, int64_t sequences, int64_t tokens, int64_t blocks) {
    const int64_t rows = sequences * tokens;
    const int64_t query = rows * info.q_heads * info.head_dim, key = rows * info.kv_heads * info.head_dim;
    block_sums = needs.block_sums ? rows * info.kv_heads * blocks : 0;
    block_max = needs.block_max ? rows * info.q_heads * blocks : 0;
    value_norms = needs.value_norms ? rows * info.q_heads : 0;
    outputs = needs.outputs ? query : 0;
    queries = needs.projections ? query : 0;
    keys = values = needs.projections ? key : 0;
  }
};

int64_t hidden_elements(const BaselineNeeds& needs, const SourceInfo& info, int64_t sequences, int64_t tokens) {
  return needs.hidden ? sequences * tokens * info.width : 0;
}

bool has_statistics(const BaselineNeeds& needs) { return needs.block_sums || needs.block_max; }

int block_tokens(const BaselineNeeds& needs) { return has_statistics(needs) ? needs.statistics_block : kPlainBlock; }

int64_t blocks_of(const BaselineNeeds& needs, int64_t tokens) {
  return (tokens + block_tokens(needs) - 1) / block_tokens(needs);
}

// Collects the full-cache pass of a replay that never evicts.
class Collector final : public Observer {
 public:
  Collector(Backend& backend, Source& source, Baseline& baseline)
      : backend_(backend), source_(source), info_(source.info()), baseline_(baseline) {
    const LayerElements elements(baseline.has, info_, baseline.sequences, baseline.max_tokens, baseline.blocks);
    const DType type = backend.activation_type();
    for (int layer = 0; layer < info_.layers; ++layer) {
      baseline.layers.push_back({.block_sums = zeros(DType::kF32, elements.block_sums),
                                 .block_max = zeros(DType::kF32, elements.block_max),
                                 .value_norms = zeros(DType::kF32, elements.value_norms),
                                 .outputs = zeros(type, elements.outputs),
                                 .queries = zeros(type, elements.queries),
                                 .keys = zeros(type, elements.keys),
                                 .values = zeros(type, elements.values)});
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
    if (collected.outputs) collect_rows(view.segments, outputs, collected.outputs, query);
    if (!collected.queries) return;
    collect_rows(view.segments, view.projections.queries, collected.queries, query);
    collect_rows(view.segments, view.projections.keys, collected.keys, key);
    collect_rows(view.segments, view.projections.values, collected.values, key);
  }

  void block_done(const Block& block, const TokenLosses& losses) override {
    if (losses.nll.empty()) return;
    if (baseline_.has.hidden) collect_hidden(block, losses.hidden);
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
    if (elements == 0) return {};
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

  void collect_hidden(const Block& block, ConstRef hidden) {
    const int64_t elements = hidden_elements(baseline_.has, info_, baseline_.sequences, baseline_.max_tokens);
    if (!baseline_.hidden) baseline_.hidden = zeros(hidden.dtype, elements);
    collect_rows(block.segments, hidden, baseline_.hidden, info_.width);
  }

  void collect_norms(const LayerView& view, Tensor& norms) {
    const int64_t tokens = total_tokens(view);
    norms_.reserve(backend_, DType::kF32, tokens * info_.q_heads);
    backend_.projected_norms({.values = view.projections.values,
                              .output_weight = source_.output_weight(view.layer),
                              .norms = norms_.ref().as<float>(),
                              .tokens = tokens,
                              .q_heads = info_.q_heads,
                              .kv_heads = info_.kv_heads,
                              .head_dim = info_.head_dim,
                              .width = info_.width});
    collect_rows(view.segments, norms_.ref(), norms, info_.q_heads);
  }

  static int64_t total_tokens(const LayerView& view) {
    int64_t tokens = 0;
    for (const Segment& segment : view.segments) tokens += segment.count;
    return tokens;
  }

  // Packed rows of `width` elements → [sequence, position].
  void collect_rows(std::span<const Segment> segments, ConstRef from, Tensor& to, int64_t width) {
    const size_t element = bytes_of(from.dtype);
    for (const Segment& segment : segments) {
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
  const int block = block_tokens(needs);
  baseline.blocks = blocks_of(needs, baseline.max_tokens);
  if (has_statistics(needs) && baseline.blocks > kMostBlocks) {
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

size_t baseline_bytes(const Backend& backend, const SourceInfo& info, const BaselineNeeds& needs, int64_t sequences,
                      int64_t tokens) {
  const LayerElements layer(needs, info, sequences, tokens, blocks_of(needs, tokens));
  const int64_t statistics = layer.block_sums + layer.block_max + layer.value_norms;
  const int64_t states = layer.outputs + layer.queries + layer.keys + layer.values;
  const size_t activation = bytes_of(backend.activation_type());
  const size_t of_layer =
      static_cast<size_t>(statistics) * bytes_of(DType::kF32) + static_cast<size_t>(states) * activation;
  return static_cast<size_t>(info.layers) * of_layer +
         static_cast<size_t>(hidden_elements(needs, info, sequences, tokens)) * activation;
}

}  // namespace kv
