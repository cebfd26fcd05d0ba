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

Tensor on_device(Backend& backend, const std::vector<float>& values) {
  Tensor tensor(backend, DType::kF32, std::ssize(values));
  tensor.upload(values.data(), values.size() * sizeof(float));
  return tensor;
}

std::vector<float> on_host(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  tensor.download(values.data(), tensor.bytes());
  return values;
}

int64_t tokens_of(const LayerView& view) {
  int64_t tokens = 0;
  for (const Segment& segment : view.segments) tokens = std::max<int64_t>(tokens, segment.first_token + segment.count);
  return tokens;
}

}  // namespace

std::vector<LearnedPart> WriteGateNetwork::parts(const SourceInfo& info) const {
  const int64_t dim = info.head_dim, units = hidden(info);
  return {{"pre_rope_norm.weight", {dim}}, {"norm.weight", {dim}},     {"hidden.weight", {units, 2 * dim}},
          {"hidden.bias", {units}},        {"output.weight", {units}}, {"output.bias", {}}};
}

size_t WriteGateNetwork::bytes(const SourceInfo& info, DType activations) const {
  const auto heads = static_cast<size_t>(info.layers) * static_cast<size_t>(info.kv_heads);
  const auto units = static_cast<size_t>(hidden(info)), inputs = 2 * static_cast<size_t>(info.head_dim);
  return heads * (units * inputs * bytes_of(activations) + (2 * units + 1) * sizeof(float));
}

std::vector<float> WriteGateNetwork::initial(const SourceInfo& info, uint64_t seed) const {
  const int64_t inputs = 2 * int64_t{info.head_dim}, units = hidden(info), heads = int64_t{info.layers} * info.kv_heads;
  const auto hidden_bound = static_cast<float>(1 / std::sqrt(static_cast<double>(inputs)));
  const auto output_bound = static_cast<float>(1 / std::sqrt(static_cast<double>(units)));
  std::vector<float> parameters;
  uint32_t drawn = 0;
  const auto draw = [&](int64_t count, float bound) {
    for (int64_t i = 0; i < count; ++i) parameters.push_back(bound * (2 * hash_uniform(seed, drawn++) - 1));
  };
  for (int64_t head = 0; head < heads; ++head) {
    parameters.insert(parameters.end(), static_cast<size_t>(inputs), 1.0F);
    draw(units * inputs + units, hidden_bound);
    draw(units + 1, output_bound);
  }
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
  const int64_t inputs = 2 * int64_t{info.head_dim}, units = hidden_, heads = int64_t{info.layers} * info.kv_heads;
  KV_CHECK(std::ssize(parameters) == heads * elements_of(parts(info)));
  std::vector<float> weights, bias, output_weights, output_bias;
  const float* at = parameters.data();
  for (int64_t head = 0; head < heads; ++head) {
    const float* norms = std::exchange(at, at + inputs);
    for (int64_t i = 0; i < units * inputs; ++i) weights.push_back(*at++ * norms[i % inputs]);
    bias.insert(bias.end(), at, at + units);
    output_weights.insert(output_weights.end(), at + units, at + 2 * units);
    output_bias.push_back(at[2 * units]);
    at += 2 * units + 1;
  }
  upload_activations(backend, weights_, weights);
  bias_ = on_device(backend, bias);
  output_weights_ = on_device(backend, output_weights);
  output_bias_ = on_device(backend, output_bias);
}

WriteGateArgs WriteGateNetwork::args(int layer, const Projections& projections, int64_t tokens) const {
  const int64_t first = int64_t{layer} * kv_heads_;
  return {.pre_rope_keys = projections.pre_rope_keys,
          .keys = projections.keys,
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
  gates_.reserve(view.backend, DType::kF32, tokens * view.kv_heads);
  WriteGateArgs of = args(view.layer, view.projections, tokens);
  of.gates = gates_.ref().as<float>();
  view.backend.write_gate(of);
  return of.gates;
}

WriteGateGradients::WriteGateGradients(Backend& backend, const SourceInfo& info, const WriteGateNetwork& network)
    : heads_(int64_t{info.layers} * info.kv_heads),
      hidden_(network.hidden(info)),
      inputs_(2 * int64_t{info.head_dim}),
      kv_heads_(info.kv_heads),
      weights_(backend, DType::kF32, heads_ * hidden_ * inputs_),
      bias_(backend, DType::kF32, heads_ * hidden_),
      output_weights_(backend, DType::kF32, heads_ * hidden_),
      output_bias_(backend, DType::kF32, heads_) {
  for (Tensor* tensor : {&weights_, &bias_, &output_weights_, &output_bias_}) tensor->fill_zero();
}

void WriteGateGradients::add_into(int layer, WriteGateBackwardArgs& args) {
  const int64_t first = int64_t{layer} * kv_heads_;
  args.weight_gradient = weights_.ref().as<float>() + first * hidden_ * inputs_;
  args.bias_gradient = bias_.ref().as<float>() + first * hidden_;
  args.output_weight_gradient = output_weights_.ref().as<float>() + first * hidden_;
  args.output_bias_gradient = output_bias_.ref().as<float>() + first;
}

void WriteGateGradients::add_to(std::span<const float> parameters, std::span<double> gradient) const {
  const std::vector<float> weights = on_host(weights_), bias = on_host(bias_),
                           output_weights = on_host(output_weights_), output_bias = on_host(output_bias_);
  const int64_t of_head = inputs_ + hidden_ * (inputs_ + 2) + 1;
  KV_CHECK(std::ssize(parameters) == heads_ * of_head && parameters.size() == gradient.size());
  for (int64_t head = 0; head < heads_; ++head) {
    const float *norms = parameters.data() + head * of_head, *columns = norms + inputs_;
    const float* slope = weights.data() + head * hidden_ * inputs_;
    double *to_norms = gradient.data() + head * of_head, *to = to_norms + inputs_;
    for (int64_t i = 0; i < hidden_ * inputs_; ++i) {
      to[i] += double{slope[i]} * norms[i % inputs_];
      to_norms[i % inputs_] += double{slope[i]} * columns[i];
    }
    to += hidden_ * inputs_;
    for (int64_t unit = 0; unit < hidden_; ++unit) {
      to[unit] += bias[static_cast<size_t>(head * hidden_ + unit)];
      to[hidden_ + unit] += output_weights[static_cast<size_t>(head * hidden_ + unit)];
    }
    to[2 * hidden_] += output_bias[static_cast<size_t>(head)];
  }
}

}  // namespace kv
