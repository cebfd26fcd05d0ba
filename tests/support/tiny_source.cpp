#include "tests/support/tiny_source.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "tests/support/backends.h"

namespace kv::ref {

SourceInfo tiny_info(int layers, int q_heads, int kv_heads, int head_dim) {
  SourceInfo info{.name = "tiny",
                  .layers = layers,
                  .q_heads = q_heads,
                  .kv_heads = kv_heads,
                  .head_dim = head_dim,
                  .width = q_heads * head_dim,
                  .layer_numbers = std::vector<int>(static_cast<size_t>(layers)),
                  .has_pre_rope_queries = true,
                  .has_pre_rope_keys = true,
                  .has_inputs = true,
                  .inv_freq = {}};
  std::iota(info.layer_numbers.begin(), info.layer_numbers.end(), 0);
  for (int d = 0; d < head_dim; d += 2) info.inv_freq.push_back(std::pow(100.0f, -static_cast<float>(d) / head_dim));
  return info;
}

TinySample random_sample(const SourceInfo& info, int tokens, uint32_t seed) {
  TinySample sample;
  for (uint32_t layer = 0; layer < static_cast<uint32_t>(info.layers); ++layer) {
    const auto values = [&](int heads, float size, uint32_t stream) {
      std::vector<float> drawn =
          random_values(static_cast<size_t>(tokens * heads * info.head_dim), seed * 1000 + layer * 10 + stream);
      for (float& x : drawn) x *= size;
      return drawn;
    };
    sample.queries.push_back(values(info.q_heads, 4, 0));
    sample.keys.push_back(values(info.kv_heads, 1, 1));
    sample.values.push_back(values(info.kv_heads, 1, 2));
    sample.pre_rope_queries.push_back(values(info.q_heads, 4, 3));
    sample.pre_rope_keys.push_back(values(info.kv_heads, 1, 4));
    sample.inputs.push_back(values(info.width / info.head_dim, 1, 5));
  }
  return sample;
}

TinySample weighted_sample(const std::vector<std::vector<float>>& weights, const std::vector<float>& value_lengths) {
  const size_t group = weights.size(), tokens = weights[0].size();
  KV_CHECK(group <= 2);
  TinySample sample{.queries = {{}}, .keys = {{}}, .values = {std::vector<float>(2 * tokens, 1.0f)}};
  for (size_t j = 0; j < tokens; ++j) {
    sample.keys[0].push_back(std::log(weights[0][j]));
    sample.keys[0].push_back(std::log(weights[group - 1][j]));
    for (size_t g = 0; g < group; ++g) {
      // √2 undoes the scale 1/√head_dim.
      sample.queries[0].push_back(g == 0 ? std::sqrt(2.0f) : 0.0f);
      sample.queries[0].push_back(g == 1 ? std::sqrt(2.0f) : 0.0f);
    }
  }
  for (size_t j = 0; j < value_lengths.size(); ++j) {
    sample.values[0][2 * j] = value_lengths[j];
    sample.values[0][2 * j + 1] = 0;
  }
  sample.pre_rope_queries = sample.queries;
  sample.pre_rope_keys = sample.keys;
  return sample;
}

TinySource::TinySource(Backend& backend, SourceInfo info, std::vector<TinySample> samples)
    : backend_(backend), info_(std::move(info)), samples_(std::move(samples)) {
  for (TinySample& sample : samples_) {
    for (const Member member : {&TinySample::queries, &TinySample::keys, &TinySample::values,
                                &TinySample::pre_rope_queries, &TinySample::pre_rope_keys, &TinySample::inputs}) {
      for (std::vector<float>& values : sample.*member) values = rounded(backend, std::move(values));
    }
  }
}

void TinySource::begin(std::span<const std::span<const int32_t>> sequences) {
  numbers_.clear();
  for (const auto& ids : sequences) numbers_.push_back(ids[0]);
}

ConstRef TinySource::pack(Tensor& tensor, Member member, int layer, int64_t width) {
  std::vector<float> packed;
  for (const Segment& segment : block_->segments) {
    const int32_t number = numbers_[static_cast<size_t>(segment.sequence)];
    const auto& layers = samples_[static_cast<size_t>(number)].*member;
    if (layers.empty()) return {};
    const auto& all = layers[static_cast<size_t>(layer)];
    const auto first = all.begin() + segment.first_position * width;
    packed.insert(packed.end(), first, first + segment.count * width);
  }
  tensor = upload_activations(backend_, packed);
  return std::as_const(tensor).ref();
}

Projections TinySource::project(int layer) {
  const int64_t query = int64_t{info_.q_heads} * info_.head_dim, key = int64_t{info_.kv_heads} * info_.head_dim;
  Projections projections;
  projections.queries = pack(queries_, &TinySample::queries, layer, query);
  projections.keys = pack(keys_, &TinySample::keys, layer, key);
  projections.values = pack(values_, &TinySample::values, layer, key);
  projections.pre_rope_queries = pack(pre_rope_queries_, &TinySample::pre_rope_queries, layer, query);
  projections.pre_rope_keys = pack(pre_rope_keys_, &TinySample::pre_rope_keys, layer, key);
  projections.inputs = pack(inputs_, &TinySample::inputs, layer, info_.width);
  return projections;
}

}  // namespace kv::ref
