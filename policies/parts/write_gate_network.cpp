#include "policies/parts/write_gate_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/random_uniform.h"
#include "kernels/write_gate.h"
#include "sim/model/activations.h"

namespace kv {

namespace {

Tensor on_device(Backend& backend, const std::vector<float>& values) {
  Tensor tensor(backend, DType::kF32, std::ssize(values));
  tensor.upload(values.data(), values.size() * sizeof(float));
  return tensor;
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

const float* WriteGateNetwork::gates(const LayerView& view) {
  const int64_t tokens = tokens_of(view), heads = view.kv_heads, first = view.layer * heads;
  const DType type = view.backend.activation_type();
  const auto* weights = static_cast<const char*>(std::as_const(weights_).ref().data);
  gates_.reserve(view.backend, DType::kF32, tokens * heads);
  view.backend.write_gate(
      {.pre_rope_keys = view.projections.pre_rope_keys,
       .keys = view.projections.keys,
       .tokens = tokens,
       .kv_heads = view.kv_heads,
       .head_dim = view.head_dim,
       .hidden = hidden_,
       .weights = {weights + first * hidden_ * 2 * view.head_dim * static_cast<int64_t>(bytes_of(type)), type},
       .bias = std::as_const(bias_).ref().as<float>() + first * hidden_,
       .output_weights = std::as_const(output_weights_).ref().as<float>() + first * hidden_,
       .output_bias = std::as_const(output_bias_).ref().as<float>() + first,
       .gates = gates_.ref().as<float>()});
  return std::as_const(gates_).ref().as<float>();
}

}  // namespace kv
