#include "sim/source/trace_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/error.h"
#include "sim/model/activations.h"

namespace kv {

namespace {

bool same_shape(const TraceInfo& a, const TraceInfo& b) {
  return a.layers == b.layers && a.q_heads == b.q_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.width == b.width && a.inv_freq == b.inv_freq;
}

}  // namespace

TraceSource::TraceSource(Backend& backend, std::span<const Trace* const> traces)
    : backend_(backend), traces_(traces.begin(), traces.end()) {
  KV_CHECK(!traces.empty());
  const TraceInfo& first = traces_.front()->info();
  info_ = {.name = fmt::format("trace of {}", first.model),
           .layers = static_cast<int>(first.layers.size()),
           .q_heads = first.q_heads,
           .kv_heads = first.kv_heads,
           .head_dim = first.head_dim,
           .width = first.width,
           .layer_numbers = first.layers,
           .has_losses = false,
           .has_pre_rope_queries = first.has_pre_rope_queries,
           .has_pre_rope_keys = first.has_pre_rope_keys,
           .has_inputs = first.has_inputs,
           .has_output_weight = first.has_output_weight,
           .inv_freq = first.inv_freq,
           .attention_factor = first.attention_factor};
  for (const Trace* trace : traces_) {
    if (!same_shape(trace->info(), first)) {
      throw UserError(fmt::format("{}: layers or shapes differ from those of {}", trace->name(), traces_[0]->name()));
    }
    info_.has_pre_rope_queries &= trace->info().has_pre_rope_queries;
    info_.has_pre_rope_keys &= trace->info().has_pre_rope_keys;
    info_.has_inputs &= trace->info().has_inputs;
    info_.has_output_weight &= trace->info().has_output_weight;
  }
  output_weights_.resize(first.layers.size());
  for (size_t layer = 0; info_.has_output_weight && layer < first.layers.size(); ++layer) {
    upload_activations(backend, output_weights_[layer], traces_[0]->read_all(first.layers[layer], "output_weight"));
  }
}

void TraceSource::begin(std::span<const std::span<const int32_t>> sequences) {
  KV_CHECK(sequences.size() == traces_.size());
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto& ids = traces_[s]->sample().ids;
    KV_CHECK(sequences[s].size() <= ids.size() && std::equal(sequences[s].begin(), sequences[s].end(), ids.begin()));
  }
}

void TraceSource::start(const Block& block) { block_ = &block; }

ConstRef TraceSource::load(int layer, const char* what, int64_t width, Tensor& tensor) {
  staging_.resize(static_cast<size_t>(block_->tokens * width));
  for (const Segment& segment : block_->segments) {
    if (segment.count == 0) continue;
    traces_[static_cast<size_t>(segment.sequence)]->read(info_.layer_numbers[static_cast<size_t>(layer)], what,
                                                         segment.first_position, segment.count,
                                                         staging_.data() + segment.first_token * width);
  }
  upload_activations(backend_, tensor, staging_);
  return std::as_const(tensor).ref();
}

Projections TraceSource::project(int layer) {
  const int64_t query = static_cast<int64_t>(info_.q_heads) * info_.head_dim;
  const int64_t key = static_cast<int64_t>(info_.kv_heads) * info_.head_dim;
  Projections projections{.queries = load(layer, "queries", query, queries_),
                          .keys = load(layer, "keys", key, keys_),
                          .values = load(layer, "values", key, values_)};
  if (wanted_.pre_rope_queries && info_.has_pre_rope_queries) {
    projections.pre_rope_queries = load(layer, "pre_rope_queries", query, pre_rope_queries_);
  }
  if (wanted_.pre_rope_keys && info_.has_pre_rope_keys) {
    projections.pre_rope_keys = load(layer, "pre_rope_keys", key, pre_rope_keys_);
  }
  if (wanted_.inputs && info_.has_inputs) projections.inputs = load(layer, "inputs", info_.width, inputs_);
  return projections;
}

void TraceSource::absorb(int, ConstRef) {}

void TraceSource::finish(TokenLosses& losses) { losses = {}; }

ConstRef TraceSource::output_weight(int layer) const { return output_weights_[static_cast<size_t>(layer)].ref(); }

}  // namespace kv
