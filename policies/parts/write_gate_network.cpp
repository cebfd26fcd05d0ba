#include "policies/parts/write_gate_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/error.h"
#include "kernels/random_uniform.h"
#include "sim/model/activations.h"

namespace kv {

namespace {

// Of parts().
constexpr const char *kPreRopeNorm = "pre_rope_norm.weight", *kNorm = "norm.weight", *kHiddenWeight = "hidden.weight",
                     *kHiddenBias = "hidden.bias", *kOutputWeight = "output.weight", *kOutputBias = "output.bias";

// Each scales one half of the columns of W1.
constexpr const char* kNorms[] = {kPreRopeNorm, kNorm};

// Writes W1 of a head, of all layers' heads, with the weights of the norms in its columns.
void fold_norms(const NamedParts& named, std::span<const float> parameters, int64_t layer, int64_t head, float* to) {
  const std::span<const float> weights = named.of_owner(kHiddenWeight, head, parameters);
  const std::span<const float> norms[] = {named.of_owner(kNorms[0], layer, parameters),
                                          named.of_owner(kNorms[1], layer, parameters)};
  for (size_t at = 0; at < weights.size();) {
    for (const std::span<const float> norm : norms) {
      for (size_t i = 0; i < norm.size(); ++i) to[at + i] = weights[at + i] * norm[i];
      at += norm.size();
    }
  }
}

int64_t tokens_of(const LayerView& view) {
  int64_t tokens = 0;
  for (const Segment& segment : view.segments) tokens = std::max<int64_t>(tokens, segment.first_token + segment.count);
  return tokens;
}

}  // namespace

std::vector<LearnedPart> WriteGateNetwork::parts(const SourceInfo& info) const {
  using enum LearnedScope;
  const int64_t dim = info.head_dim, units = hidden(info);
  return {{kPreRopeNorm, {dim}, kLayer}, {kNorm, {dim}, kLayer},   {kHiddenWeight, {units, 2 * dim}},
          {kHiddenBias, {units}},        {kOutputWeight, {units}}, {kOutputBias, {}}};
}

size_t WriteGateNetwork::bytes(const SourceInfo& info, DType activations) const {
  const auto heads = static_cast<size_t>(info.layers) * static_cast<size_t>(info.kv_heads);
  const auto units = static_cast<size_t>(hidden(info)), inputs = 2 * static_cast<size_t>(info.head_dim);
  return heads * (units * inputs * bytes_of(activations) + (2 * units + 1) * sizeof(float));
}

std::vector<float> WriteGateNetwork::initial(const SourceInfo& info, uint64_t seed) const {
  const NamedParts named(parts(info), info.layers, info.kv_heads);
  const int64_t inputs = 2 * int64_t{info.head_dim}, units = hidden(info), heads = int64_t{info.layers} * info.kv_heads;
  std::vector<float> parameters(static_cast<size_t>(named.elements()), 1.0F);
  uint32_t drawn = 0;
  const auto draw = [&](const char* part, int64_t of_head, int64_t fan_in) {
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(fan_in)));
    std::vector<float> values;
    for (int64_t i = 0; i < heads * of_head; ++i) values.push_back(bound * (2 * hash_uniform(seed, drawn++) - 1));
    named.write(part, values, parameters);
  };
  draw(kHiddenWeight, units * inputs, inputs);
  draw(kHiddenBias, units, inputs);
  draw(kOutputWeight, units, units);
  draw(kOutputBias, 1, units);
  return parameters;
}

void WriteGateNetwork::require_fit(int head_dim) const {
  if (head_dim > WriteGateArgs::kMostHeadDim || head_dim % 4 != 0) {
    throw UserError(fmt::format("wg-kv: a head dimension of {}: expected a multiple of 4, at most {}", head_dim,
                                WriteGateArgs::kMostHeadDim));
  }
  if (units(head_dim) == 0) {
    throw UserError(fmt::format("wg-kv: expand = {}: no hidden unit at a head dimension of {}, expected at least {}",
                                expand_, head_dim, 1.0 / head_dim));
  }
}

void WriteGateNetwork::use(Backend& backend, const SourceInfo& info, std::span<const float> parameters) {
  require_fit(info.head_dim);
  hidden_ = hidden(info);
  kv_heads_ = info.kv_heads;
  head_dim_ = info.head_dim;
  heads_ = int64_t{info.layers} * kv_heads_;
  const NamedParts named(parts(info), info.layers, info.kv_heads);
  const int64_t of_head = int64_t{hidden_} * 2 * head_dim_;
  const cpu::Scratch weights(heads_ * of_head);
  cpu::parallel_for(heads_, [&](int64_t head) {
    fold_norms(named, parameters, head / kv_heads_, head, weights.data() + head * of_head);
  });
  std::vector<float> numbers;
  for (const char* part : {kHiddenBias, kOutputWeight, kOutputBias}) {
    const std::vector<float> of_heads = named.read(part, parameters);
    numbers.insert(numbers.end(), of_heads.begin(), of_heads.end());
  }
  upload_activations(backend, weights_, {weights.data(), static_cast<size_t>(heads_ * of_head)});
  numbers_.reserve(backend, DType::kF32, std::ssize(numbers));
  backend.upload(numbers_.ref().data, numbers.data(), numbers.size() * sizeof(float));
}

WriteGateArgs WriteGateNetwork::args(int layer, const Projections& projections, int64_t tokens, int layers) const {
  const int64_t first = int64_t{layer} * kv_heads_;
  const auto* biases = numbers_.ref().as<float>();
  return {.pre_rope_keys = projections.pre_rope_keys,
          .keys = projections.keys,
          .layers = layers,
          .tokens = tokens,
          .kv_heads = kv_heads_,
          .head_dim = head_dim_,
          .hidden = hidden_,
          .weights = weights_.at(first * hidden_ * 2 * head_dim_),
          .bias = biases + first * hidden_,
          .output_weights = biases + (heads_ + first) * hidden_,
          .output_bias = biases + 2 * heads_ * hidden_ + first};
}

const float* WriteGateNetwork::gates(const LayerView& view) {
  const int64_t tokens = tokens_of(view);
  gates_.reserve(view.backend, DType::kF32, view.layers * tokens * view.kv_heads);
  WriteGateArgs of = args(view.layer, view.projections, tokens, view.layers);
  of.gates = gates_.ref().as<float>();
  view.backend.write_gate(of);
  return of.gates;
}

WriteGateGradients::WriteGateGradients(Backend& backend, const SourceInfo& info, const WriteGateNetwork& network)
    : info_(info),
      named_(network.parts(info), info.layers, info.kv_heads),
      hidden_(network.hidden(info)),
      slopes_(backend, DType::kF32, heads() * (hidden_ * (inputs() + 2) + 1)) {
  slopes_.fill_zero();
}

void WriteGateGradients::add_into(int layer, WriteGateBackwardArgs& args) {
  const int64_t first = int64_t{layer} * info_.kv_heads;
  auto* slopes = slopes_.ref().as<float>();
  args.weight_gradient = slopes + first * hidden_ * inputs();
  args.bias_gradient = slopes + first_bias() + first * hidden_;
  args.output_weight_gradient = slopes + first_output_weight() + first * hidden_;
  args.output_bias_gradient = slopes + first_output_bias() + first;
}

void WriteGateGradients::add_to(std::span<const float> parameters, std::span<const float> slopes,
                                std::span<double> gradient) const {
  KV_CHECK(std::ssize(slopes) == slopes_.elements());
  cpu::parallel_for(info_.layers * std::ssize(kNorms), [&](int64_t index) {
    const auto norm = static_cast<int>(index % std::ssize(kNorms));
    add_columns(static_cast<int>(index / std::ssize(kNorms)), norm, slopes, {parameters, gradient});
  });
  const auto of_units = static_cast<size_t>(heads() * hidden_);
  named_.add(kHiddenBias, slopes.subspan(static_cast<size_t>(first_bias()), of_units), gradient);
  named_.add(kOutputWeight, slopes.subspan(static_cast<size_t>(first_output_weight()), of_units), gradient);
  named_.add(kOutputBias, slopes.subspan(static_cast<size_t>(first_output_bias())), gradient);
}

void WriteGateGradients::add_columns(int layer, int norm, std::span<const float> slopes, const Learned& to) const {
  const int64_t dim = info_.head_dim, first_column = norm * dim;
  const std::span<const float> norm_weights = named_.of_owner(kNorms[norm], layer, to.parameters);
  std::vector<double> of_norm(norm_weights.size());
  for (int64_t head = int64_t{layer} * info_.kv_heads; head < int64_t{layer + 1} * info_.kv_heads; ++head) {
    const float* weight = named_.of_owner(kHiddenWeight, head, to.parameters).data() + first_column;
    const float* slope = slopes.data() + head * hidden_ * inputs() + first_column;
    double* sum = named_.of_owner(kHiddenWeight, head, to.gradient).data() + first_column;
    for (int64_t unit = 0; unit < hidden_; ++unit) {
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) {
        of_norm[i] += double{slope[i]} * weight[i];
        sum[i] += double{slope[i]} * norm_weights[i];
      }
      weight += inputs(), slope += inputs(), sum += inputs();
    }
  }
  double* sum = named_.of_owner(kNorms[norm], layer, to.gradient).data();
  for (int64_t i = 0; i < dim; ++i) sum[i] += of_norm[i];
}

}  // namespace kv
