#include "sim/model/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/io/strict_json.h"
#include "sim/model/model_limits.h"

namespace kv {
namespace {

constexpr std::string_view kArchitectureKey = "general.architecture";

struct GgufArchitecture {
  std::string_view name;
  ModelFamily family;
};

constexpr std::array<GgufArchitecture, 3> kGgufArchitectures = {
    {{"llama", ModelFamily::kLlama}, {"qwen2", ModelFamily::kQwen2}, {"qwen3", ModelFamily::kQwen3}}};

// Keys of these architectures that change what a model computes, in a way that this project does not know.
constexpr std::array<std::string_view, 11> kUnknownMeanings = {"attention.scale",
                                                               "attention.clamp_kqv",
                                                               "attn_logit_softcapping",
                                                               "final_logit_softcapping",
                                                               "logit_scale",
                                                               "embedding_scale",
                                                               "residual_scale",
                                                               "rope.scaling.yarn_log_multiplier",
                                                               "rope.scaling.yarn_ext_factor",
                                                               "rope.scaling.yarn_attn_factor",
                                                               "swin_norm"};

struct NamePair {
  std::string_view folder, gguf;
};

constexpr std::array<NamePair, 3> kModelNames = {{{"model.embed_tokens.weight", "token_embd.weight"},
                                                  {"model.norm.weight", "output_norm.weight"},
                                                  {"lm_head.weight", "output.weight"}}};
constexpr std::array<NamePair, 11> kBlockNames = {{{"input_layernorm", "attn_norm"},
                                                   {"self_attn.q_proj", "attn_q"},
                                                   {"self_attn.k_proj", "attn_k"},
                                                   {"self_attn.v_proj", "attn_v"},
                                                   {"self_attn.o_proj", "attn_output"},
                                                   {"self_attn.q_norm", "attn_q_norm"},
                                                   {"self_attn.k_norm", "attn_k_norm"},
                                                   {"post_attention_layernorm", "ffn_norm"},
                                                   {"mlp.gate_proj", "ffn_gate"},
                                                   {"mlp.up_proj", "ffn_up"},
                                                   {"mlp.down_proj", "ffn_down"}}};

// The values of one architecture: its keys begin with its name.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(architecture) {
    prefix_ += '.';
  }

  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  bool has(std::string_view key) const { return file_.value(full(key)) != nullptr; }
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const { file_.refuse(full(key), expected); }
  int integer(std::string_view key, int64_t most, std::optional<int> fallback = std::nullopt, int64_t least = 1) const {
    const auto value = file_.integer(full(key), least, most);
    if (!value && !fallback) refuse(key, fmt::format("an integer from {} to {}", least, most));
    return value ? static_cast<int>(*value) : *fallback;
  }
  std::optional<double> number(std::string_view key, NumberRange range) const {
    return file_.number(full(key), range.above, range.at_most);
  }
  std::string_view text_or(std::string_view key, std::string_view fallback) const {
    return file_.text(full(key)).value_or(fallback);
  }
  std::optional<bool> flag(std::string_view key) const { return file_.flag(full(key)); }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

const GgufArchitecture& architecture_of(const GgufFile& file) {
  const auto name = file.text(kArchitectureKey);
  std::string known;
  for (const GgufArchitecture& architecture : kGgufArchitectures) {
    if (name == architecture.name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  file.refuse(kArchitectureKey, "one of " + known);
}

void refuse_unknown_meanings(const ArchitectureKeys& keys) {
  for (const std::string_view key : kUnknownMeanings) {
    if (keys.has(key)) keys.refuse(key, "none: it changes the model in a way that is not supported");
  }
  if (keys.integer("expert_count", kMaxModelSize, 0, 0) != 0) {
    keys.refuse("expert_count", "0: mixtures of experts are not supported");
  }
  if (keys.flag("use_parallel_residual").value_or(false)) keys.refuse("use_parallel_residual", "false");
  if (!keys.flag("attention.causal").value_or(true)) keys.refuse("attention.causal", "true");
}

const GgufTensor& embedding_of(const GgufFile& file) {
  const std::string name = gguf_tensor_name("model.embed_tokens.weight");
  const GgufTensor* tensor = file.find(name);
  if (!tensor) throw UserError(fmt::format("{}: tensor {} is missing", file.name(), in_quotes(name)));
  if (tensor->shape.size() != 2 || tensor->shape[0] > kMaxModelSize) {
    throw UserError(fmt::format("{}: tensor {}: shape {}, expected a matrix of at most {} rows", file.name(),
                                in_quotes(name), shape_text(tensor->shape), kMaxModelSize));
  }
  return *tensor;
}

void read_sizes(const GgufFile& file, const ArchitectureKeys& keys, ModelConfig& config) {
  config.hidden_size = keys.integer("embedding_length", kMaxModelSize);
  config.layers = keys.integer("block_count", kMaxModelLayers);
  config.heads = keys.integer("attention.head_count", kMaxModelSize);
  config.kv_heads = keys.integer("attention.head_count_kv", kMaxModelSize, config.heads);
  config.intermediate_size = keys.integer("feed_forward_length", kMaxModelSize);
  config.max_positions = keys.integer("context_length", kMaxModelPositions);
  config.vocab_size = static_cast<int>(embedding_of(file).shape[0]);
  if (config.heads % config.kv_heads != 0) {
    keys.refuse("attention.head_count_kv", fmt::format("a divisor of attention.head_count {}", config.heads));
  }
  constexpr int kMaxHeadDim = 4096;
  if (!keys.has("attention.key_length") && config.hidden_size % config.heads != 0) {
    keys.refuse("attention.head_count", fmt::format("a divisor of embedding_length {}", config.hidden_size));
  }
  config.head_dim = keys.integer("attention.key_length", kMaxHeadDim, config.hidden_size / config.heads);
  if (config.head_dim % 2 != 0 || config.head_dim == 0) {
    keys.refuse("attention.key_length", fmt::format("an even size of heads, not {}", config.head_dim));
  }
  if (int64_t{config.heads} * config.head_dim > kMaxModelSize) {
    keys.refuse("attention.head_count", fmt::format("heads times their size of at most {}", kMaxModelSize));
  }
  const std::string head = fmt::format("{}, the size of a head", config.head_dim);
  if (keys.integer("attention.value_length", kMaxHeadDim, config.head_dim) != config.head_dim) {
    keys.refuse("attention.value_length", head);
  }
  if (keys.integer("rope.dimension_count", kMaxHeadDim, config.head_dim) != config.head_dim) {
    keys.refuse("rope.dimension_count", head);
  }
}

void read_yarn(const ArchitectureKeys& keys, const ModelConfig& config, double factor, RopeConfig& rope) {
  constexpr NumberRange kRotations{0.0, 1e6};
  rope.type = RopeType::kYarn;
  rope.original_max_positions =
      keys.integer("rope.scaling.original_context_length", kMaxModelPositions, config.max_positions);
  rope.beta_fast = keys.number("rope.scaling.yarn_beta_fast", kRotations).value_or(rope.beta_fast);
  rope.beta_slow = keys.number("rope.scaling.yarn_beta_slow", kRotations).value_or(rope.beta_slow);
  if (rope.beta_fast < rope.beta_slow) keys.refuse("rope.scaling.yarn_beta_fast", "at least yarn_beta_slow");
  // What is stored multiplies the paper's factor.
  if (const auto stored = keys.number("rope.scaling.attn_factor", {0.0, 1e6})) {
    rope.attention_factor = *stored * (factor <= 1.0 ? 1.0 : 0.1 * std::log(factor) + 1.0);
  }
}

std::vector<float> read_divisors(const GgufFile& file, int head_dim) {
  const GgufTensor* tensor = file.find(kGgufRopeFactors);
  if (!tensor) return {};
  const auto fail = [&](const std::string& reason) {
    throw UserError(fmt::format("{}: tensor {}: {}", file.name(), in_quotes(kGgufRopeFactors), reason));
  };
  const std::vector<int64_t> expected = {head_dim / 2};
  if (tensor->shape != expected) {
    fail(fmt::format("shape {}, expected {}", shape_text(tensor->shape), shape_text(expected)));
  }
  std::vector<float> divisors(static_cast<size_t>(head_dim / 2));
  file.read_f32(*tensor, 0, divisors);
  for (const float divisor : divisors) {
    if (divisor <= kRopeFactor.above || divisor > kRopeFactor.at_most) {
      fail(fmt::format("holds {}, expected numbers above {} and at most {}", divisor, kRopeFactor.above,
                       kRopeFactor.at_most));
    }
  }
  return divisors;
}

RopeConfig read_rope(const GgufFile& file, const ArchitectureKeys& keys, const ModelConfig& config) {
  RopeConfig rope;
  rope.theta = keys.number("rope.freq_base", kRopeTheta).value_or(rope.theta);
  rope.divisors = read_divisors(file, config.head_dim);
  // Of the two keys for the factor the second is the older one; 0 says that there is none.
  constexpr NumberRange kFactor{-1e-9, kRopeFactor.at_most};
  const double old_factor = keys.number("rope.scale_linear", kFactor).value_or(0.0);
  const double factor = keys.number("rope.scaling.factor", kFactor).value_or(old_factor);
  const std::string_view type = keys.text_or("rope.scaling.type", "linear");
  if (type != "none" && type != "linear" && type != "yarn") keys.refuse("rope.scaling.type", "none, linear or yarn");
  if (type == "none" || factor == 0.0) return rope;
  if (factor <= kRopeFactor.above) keys.refuse("rope.scaling.factor", fmt::format("more than {}", kRopeFactor.above));
  rope.type = RopeType::kLinear;
  rope.factor = factor;
  if (type == "yarn") read_yarn(keys, config, factor, rope);
  return rope;
}

std::vector<int> ids_of(const GgufFile& file, std::initializer_list<std::string_view> names, int vocab_size) {
  std::vector<int> ids;
  for (const std::string_view name : names) {
    const auto id = file.integer(fmt::format("tokenizer.ggml.{}_token_id", name), 0, vocab_size - 1);
    if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(static_cast<int>(*id));
  }
  return ids;
}

}  // namespace

ModelConfig gguf_model_config(const GgufFile& file) {
  const GgufArchitecture& architecture = architecture_of(file);
  const ArchitectureKeys keys(file, architecture.name);
  refuse_unknown_meanings(keys);
  ModelConfig config;
  config.family = architecture.family;
  read_sizes(file, keys, config);
  const auto epsilon = keys.number("attention.layer_norm_rms_epsilon", {0.0, 1.0});
  if (!epsilon) keys.refuse("attention.layer_norm_rms_epsilon", "a float above 0 and at most 1");
  config.rms_norm_eps = *epsilon;
  config.tie_word_embeddings = file.find(gguf_tensor_name("lm_head.weight")) == nullptr;
  config.qkv_bias = config.family == ModelFamily::kQwen2 || file.find("blk.0.attn_q.bias") != nullptr;
  config.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  config.qk_norm = config.family == ModelFamily::kQwen3;
  config.sliding_window = keys.integer("attention.sliding_window", kMaxModelPositions, 0, 0);
  config.rope = read_rope(file, keys, config);
  config.bos_ids = ids_of(file, {"bos"}, config.vocab_size);
  config.eos_ids = ids_of(file, {"eos", "eot", "eom"}, config.vocab_size);
  return config;
}

std::string gguf_tensor_name(std::string_view name) {
  for (const auto& [folder, gguf] : kModelNames) {
    if (name == folder) return std::string(gguf);
  }
  constexpr std::string_view kLayers = "model.layers.";
  KV_CHECK(name.starts_with(kLayers));
  name.remove_prefix(kLayers.size());
  const size_t number = name.find('.'), kind = name.rfind('.');
  const std::string_view part = name.substr(number + 1, kind - number - 1);
  for (const auto& [folder, gguf] : kBlockNames) {
    if (part == folder) return fmt::format("blk.{}.{}{}", name.substr(0, number), gguf, name.substr(kind));
  }
  KV_CHECK(false);
  return {};
}

bool gguf_pairs_are_neighbours(const ModelConfig& config) { return config.family == ModelFamily::kLlama; }

}  // namespace kv
