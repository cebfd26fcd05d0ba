#include "sim/model/weights.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include "kernels/backend.h"
#include "kernels/random_normal.h"
#include "sim/model/activations.h"
#include "sim/model/footprint.h"

namespace kv {
namespace {

constexpr float kRandomSigma = 0.02f;

// Calls visit(name, shape, tensor) for every tensor of the config: names, shapes and members are said here only.
template <class Visit>
void for_each_tensor(const ModelConfig& config, ModelTensors& weights, Visit&& visit) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size, vocab = config.vocab_size;
  const int64_t q = config.q_size(), kv = config.kv_size(), dim = config.head_dim;
  visit("model.embed_tokens.weight", {vocab, hidden}, weights.embedding);
  for (int i = 0; i < config.layers; ++i) {
    LayerTensors& layer = weights.layers[static_cast<size_t>(i)];
    const std::string block = fmt::format("model.layers.{}.", i);
    const std::string attention = block + "self_attn.";
    visit(block + "input_layernorm.weight", {hidden}, layer.input_norm);
    visit(attention + "q_proj.weight", {q, hidden}, layer.q);
    visit(attention + "k_proj.weight", {kv, hidden}, layer.k);
    visit(attention + "v_proj.weight", {kv, hidden}, layer.v);
    visit(attention + "o_proj.weight", {hidden, q}, layer.o);
    if (config.qkv_bias) {
      visit(attention + "q_proj.bias", {q}, layer.q_bias);
      visit(attention + "k_proj.bias", {kv}, layer.k_bias);
      visit(attention + "v_proj.bias", {kv}, layer.v_bias);
    }
    if (config.o_bias) visit(attention + "o_proj.bias", {hidden}, layer.o_bias);
    if (config.qk_norm) {
      visit(attention + "q_norm.weight", {dim}, layer.q_norm);
      visit(attention + "k_norm.weight", {dim}, layer.k_norm);
    }
    visit(block + "post_attention_layernorm.weight", {hidden}, layer.post_norm);
    visit(block + "mlp.gate_proj.weight", {inner, hidden}, layer.gate);
    visit(block + "mlp.up_proj.weight", {inner, hidden}, layer.up);
    visit(block + "mlp.down_proj.weight", {hidden, inner}, layer.down);
  }
  visit("model.norm.weight", {hidden}, weights.final_norm);
  if (!config.tie_word_embeddings) visit("lm_head.weight", {vocab, hidden}, weights.lm_head);
}

// Every stream of one seed its own: FNV-1a of the tensor's name (Fowler, Noll and Vo).
uint64_t stream_of(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return seed ^ hash;
}

}  // namespace

int64_t ExpectedTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  ModelTensors places;
  places.layers.resize(static_cast<size_t>(config.layers));
  std::vector<ExpectedTensor> expected;
  for_each_tensor(config, places, [&](std::string name, std::vector<int64_t> shape, Tensor&) {
    expected.push_back({std::move(name), std::move(shape)});
  });
  return expected;
}

int64_t parameters_of(const ModelConfig& config) {
  int64_t sum = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config)) sum += tensor.elements();
  return sum;
}

Tensor RandomWeights::load(const ExpectedTensor& expected, Backend& backend) const {
  Tensor tensor(backend, backend.activation_type(), expected.elements());
  if (expected.name.ends_with("norm.weight")) {
    upload_activations(backend, tensor.ref(), std::vector<float>(static_cast<size_t>(expected.elements()), 1.0f));
  } else {
    backend.random_normal({.output = tensor.ref(),
                           .count = tensor.elements(),
                           .seed = stream_of(seed_, expected.name),
                           .sigma = kRandomSigma});
  }
  return tensor;
}

ModelTensors load_tensors(const Weights& weights, Backend& backend) {
  const ModelConfig& config = weights.config();
  const size_t bytes = static_cast<size_t>(parameters_of(config)) * bytes_of(backend.activation_type());
  require_memory(backend, {.weights = bytes},
                 fmt::format("a {} model of {} layers", family_name(config.family), config.layers));
  ModelTensors tensors;
  tensors.layers.resize(static_cast<size_t>(weights.config().layers));
  for_each_tensor(weights.config(), tensors, [&](std::string name, std::vector<int64_t> shape, Tensor& tensor) {
    tensor = weights.load({std::move(name), std::move(shape)}, backend);
  });
  return tensors;
}

}  // namespace kv
