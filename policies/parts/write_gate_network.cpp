#include "policies/parts/write_gate_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/random_uniform.h"
#include "sim/model/activations.h"

namespace kv {

namespace {

// Of parts().
constexpr const char *kPreRopeNorm = "pre_rope_norm.weight", *kNorm = "norm.weight", *kHiddenWeight = "hidden.weight",
                     *kHiddenBias = "hidden.bias", *kOutputWeight = "output.weight", *kOutputBias = "output.bias";

Tensor on_device(Backend& backend, const std::vector<float>& values) {
  Tensor tensor(backend, DType::kF32, std::ssize(values));
  tensor.upload(values.data(), values.size() * sizeof(float));
  return tensor;
}

std::vector<double> on_host(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  tensor.download(values.data(), tensor.bytes());
  return {values.begin(), values.end()};
}

// Weights of both norms side by side, as they scale the columns of W1: [layers, 2 head_dim].
std::vector<float> column_norms(const NamedParts& named, std::span<const float> parameters, int64_t head_dim) {
  const std::vector<float> pre_rope = named.read(kPreRopeNorm, parameters), other = named.read(kNorm, parameters);
  std::vector<float> columns;
  for (auto first = pre_rope.begin(), second = other.begin(); first != pre_rope.end();
       first += head_dim, second += head_dim) {
    columns.insert(columns.end(), first, first + head_dim);
    columns.insert(columns.end(), second, second + head_dim);
  }
  return columns;
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

void WriteGateNetwork::use(Backend& backend, const SourceInfo& info, std::span<const float> parameters) {
  if (info.head_dim > WriteGateArgs::kMostHeadDim || info.head_dim % 4 != 0) {
    throw UserError(fmt::format("wg-kv: a head dimension of {}: expected a multiple of 4, at most {}", info.head_dim,
                                WriteGateArgs::kMostHeadDim));
  }
  hidden_ = hidden(info);
  if (hidden_ == 0) {
    throw UserError(fmt::format("wg-kv: expand = {}: no hidden unit at a head dimension of {}, expected at least {}",
                                expand_, info.head_dim, 1.0 / info.head_dim));
  }
  kv_heads_ = info.kv_heads;
  head_dim_ = info.head_dim;
  const NamedParts named(parts(info), info.layers, info.kv_heads);
  std::vector<float> weights = named.read(kHiddenWeight, parameters);
  const std::vector<float> norms = column_norms(named, parameters, head_dim_);
  const int64_t inputs = 2 * int64_t{head_dim_}, rows_of_layer = int64_t{kv_heads_} * hidden_;
  for (int64_t row = 0; row < info.layers * rows_of_layer; ++row) {
    const float* norm = norms.data() + row / rows_of_layer * inputs;
    float* weight = weights.data() + row * inputs;
    for (int64_t i = 0; i < inputs; ++i) weight[i] *= norm[i];
  }
  upload_activations(backend, weights_, weights);
  bias_ = on_device(backend, named.read(kHiddenBias, parameters));
  output_weights_ = on_device(backend, named.read(kOutputWeight, parameters));
  output_bias_ = on_device(backend, named.read(kOutputBias, parameters));
}

WriteGateArgs WriteGateNetwork::args(int layer, const Projections& projections, int64_t tokens, int layers) const {
  const int64_t first = int64_t{layer} * kv_heads_;
  return {.pre_rope_keys = projections.pre_rope_keys,
          .keys = projections.keys,
          .layers = layers,
          .tokens = tokens,
          .kv_heads = kv_heads_,
          .head_dim = head_dim_,
          .hidden = hidden_,
          .weights = weights_.at(first * hidden_ * 2 * head_dim_),
          .bias = bias_.ref().as<float>() + first * hidden_,
          .output_weights = output_weights_.ref().as<float>() + first * hidden_,
          .output_bias = output_bias_.ref().as<float>() + first};
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
      weights_(backend, DType::kF32, heads() * hidden_ * inputs()),
      bias_(backend, DType::kF32, heads() * hidden_),
      output_weights_(backend, DType::kF32, heads() * hidden_),
      output_bias_(backend, DType::kF32, heads()) {
  for (Tensor* tensor : {&weights_, &bias_, &output_weights_, &output_bias_}) tensor->fill_zero();
}

void WriteGateGradients::add_into(int layer, WriteGateBackwardArgs& args) {
  const int64_t first = int64_t{layer} * info_.kv_heads;
  args.weight_gradient = weights_.ref().as<float>() + first * hidden_ * inputs();
  args.bias_gradient = bias_.ref().as<float>() + first * hidden_;
  args.output_weight_gradient = output_weights_.ref().as<float>() + first * hidden_;
  args.output_bias_gradient = output_bias_.ref().as<float>() + first;
}

void WriteGateGradients::add_to(std::span<const float> parameters, std::span<double> gradient) const {
  std::vector<double> weights = on_host(weights_);
  const std::vector<float> columns = named_.read(kHiddenWeight, parameters);
  const std::vector<float> norms = column_norms(named_, parameters, info_.head_dim);
  std::vector<double> of_norms(norms.size());
  const int64_t rows_of_layer = info_.kv_heads * hidden_;
  for (int64_t row = 0; row < info_.layers * rows_of_layer; ++row) {
    const int64_t layer = row / rows_of_layer, first = row * inputs();
    const float *norm = norms.data() + layer * inputs(), *column = columns.data() + first;
    double *weight = weights.data() + first, *of_norm = of_norms.data() + layer * inputs();
    for (int64_t i = 0; i < inputs(); ++i) {
      of_norm[i] += weight[i] * column[i];
      weight[i] *= norm[i];
    }
  }
  std::vector<double> pre_rope, other;
  for (auto layer = of_norms.begin(); layer != of_norms.end(); layer += inputs()) {
    pre_rope.insert(pre_rope.end(), layer, layer + info_.head_dim);
    other.insert(other.end(), layer + info_.head_dim, layer + inputs());
  }
  named_.add(kPreRopeNorm, pre_rope, gradient);
  named_.add(kNorm, other, gradient);
  named_.add(kHiddenWeight, weights, gradient);
  named_.add(kHiddenBias, on_host(bias_), gradient);
  named_.add(kOutputWeight, on_host(output_weights_), gradient);
  named_.add(kOutputBias, on_host(output_bias_), gradient);
}

}  // namespace kv
