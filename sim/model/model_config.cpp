#include "sim/model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/error.h"
#include "sim/io/mapped_file.h"
#include "sim/io/strict_json.h"
#include "sim/model/model_limits.h"

namespace kv {
namespace {

using nlohmann::json;

struct Architecture {
  ModelFamily family;
  std::string_view model_type;
  std::string_view class_name;
};

constexpr std::array<Architecture, 4> kArchitectures = {{
    {ModelFamily::kLlama, "llama", "LlamaForCausalLM"},
    {ModelFamily::kMistral, "mistral", "MistralForCausalLM"},
    {ModelFamily::kQwen2, "qwen2", "Qwen2ForCausalLM"},
    {ModelFamily::kQwen3, "qwen3", "Qwen3ForCausalLM"},
}};

struct IntRange {
  int64_t low;
  int64_t high;
};

// The keys of one JSON object, typed; null counts as absent, as in transformers.
class Keys {
 public:
  Keys(const json& object, std::string owner) : object_(object), owner_(std::move(owner)) {
    if (!object.is_object()) throw UserError(fmt::format("{}: expected an object, got {}", owner_, shown_json(object)));
  }

  const std::string& owner() const { return owner_; }

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(const char* key, std::string_view expected) const {
    const json* value = find(key);
    const std::string state = value == nullptr ? "is missing" : fmt::format("is {}", shown_json(*value));
    throw UserError(fmt::format("{}: {} {}, expected {}", owner_, key, state, expected));
  }

  int integer(const char* key, IntRange range) const {
    const json* value = find(key);
    if (value == nullptr || !in_range(*value, range)) {
      refuse(key, fmt::format("an integer from {} to {}", range.low, range.high));
    }
    return value->get<int>();
  }

  int integer_or(const char* key, int fallback, IntRange range) const {
    return find(key) == nullptr ? fallback : integer(key, range);
  }

  double number(const char* key, NumberRange range) const {
    const json* value = find(key);
    const bool good =
        value != nullptr && value->is_number() && *value > range.above && value->get<double>() <= range.at_most;
    if (!good) refuse(key, fmt::format("a number above {} and at most {}", range.above, range.at_most));
    return value->get<double>();
  }

  double number_or(const char* key, double fallback, NumberRange range) const {
    return find(key) == nullptr ? fallback : number(key, range);
  }

  bool flag_or(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse(key, "true or false");
    return value->get<bool>();
  }

  std::string text_or(const char* key, std::string fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) refuse(key, "a string");
    return value->get<std::string>();
  }

  std::vector<int> ids(const char* key, int vocab_size) const {
    const json* value = find(key);
    if (value == nullptr) return {};
    const IntRange range{0, vocab_size - 1};
    const json list = value->is_array() ? *value : json::array({*value});
    std::vector<int> ids;
    for (const json& id : list) {
      if (!in_range(id, range))
        refuse(key, fmt::format("a token id below vocab_size {}, or a list of them", vocab_size));
      ids.push_back(id.get<int>());
    }
    return ids;
  }

 private:
  static bool in_range(const json& value, IntRange range) {
    if (!value.is_number_integer()) return false;
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(range.high)) return false;
    return value.get<int64_t>() >= range.low && value.get<int64_t>() <= range.high;
  }

  const json& object_;
  std::string owner_;
};

std::string supported(std::string_view (*name)(const Architecture&)) {
  std::string names;
  for (const Architecture& architecture : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(name(architecture));
  return names;
}

const Architecture* by_model_type(const Keys& keys) {
  const std::string type = keys.text_or("model_type", "");
  if (type.empty()) return nullptr;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.model_type == type) return &architecture;
  }
  throw UserError(fmt::format("{}: model_type {} is not supported; supported: {}", keys.owner(), in_quotes(type),
                              supported([](const Architecture& a) { return a.model_type; })));
}

const Architecture* by_class_name(const Keys& keys) {
  const json* names = keys.find("architectures");
  if (names == nullptr) return nullptr;
  if (!names->is_array() || names->size() != 1 || !names->front().is_string()) {
    keys.refuse("architectures", "a list of one class name");
  }
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.class_name == names->front().get_ref<const std::string&>()) return &architecture;
  }
  throw UserError(fmt::format("{}: architecture {} is not supported; supported: {}", keys.owner(),
                              shown_json(names->front()),
                              supported([](const Architecture& a) { return a.class_name; })));
}

ModelFamily family_of(const Keys& keys) {
  const Architecture* named = by_class_name(keys);
  const Architecture* typed = by_model_type(keys);
  if (named == nullptr && typed == nullptr) {
    keys.refuse("architectures", "one of " + supported([](const Architecture& a) { return a.class_name; }));
  }
  if (named != nullptr && typed != nullptr && named != typed) {
    keys.refuse("model_type", fmt::format("\"{}\", as architectures says", named->model_type));
  }
  return (named != nullptr ? named : typed)->family;
}

// A model may slide on some layers only; any such layer bounds the length up to which full attention is the same thing.
int active_window(const Keys& keys, ModelFamily family, int layers) {
  constexpr int kDefaultWindow = 4096;  // of the transformers config classes
  bool layered = false;
  if (const json* types = keys.find("layer_types")) {
    if (!types->is_array()) keys.refuse("layer_types", "a list");
    for (const json& type : *types) {
      if (type != "full_attention" && type != "sliding_attention") {
        keys.refuse("layer_types", "only \"full_attention\" and \"sliding_attention\"");
      }
      layered = layered || type == "sliding_attention";
    }
  } else {
    layered = keys.integer_or("max_window_layers", 28, {0, kMaxModelSize}) < layers;
  }
  const bool null_window = keys.find("sliding_window") == nullptr;
  switch (family) {
    case ModelFamily::kLlama:
      return 0;
    case ModelFamily::kMistral:
      return null_window ? 0 : keys.integer("sliding_window", {1, kMaxModelPositions});
    case ModelFamily::kQwen2:
    case ModelFamily::kQwen3:
      if (!keys.flag_or("use_sliding_window", false) || !layered) return 0;
      return keys.integer_or("sliding_window", kDefaultWindow, {1, kMaxModelPositions});
  }
  return 0;
}

void refuse_partial_rotation(const Keys& keys) {
  if (keys.number_or("partial_rotary_factor", 1.0, {0.0, 1.0}) != 1.0) keys.refuse("partial_rotary_factor", "1");
}

// Old configs hold a `rope_scaling` object beside `rope_theta`; newer ones a `rope_parameters` object with both inside.
const char* rope_section(const Keys& top) {
  const json* modern = top.find("rope_parameters");
  const json* legacy = top.find("rope_scaling");
  if (modern != nullptr && legacy != nullptr && *modern != *legacy) {
    top.refuse("rope_scaling", "only one of rope_scaling and rope_parameters");
  }
  if (modern != nullptr) return "rope_parameters";
  return legacy != nullptr ? "rope_scaling" : nullptr;
}

RopeType rope_type_of(const Keys& keys) {
  const char* key = keys.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string name = keys.text_or(key, "");
  if (name.empty() && keys.find("factor") == nullptr) return RopeType::kDefault;
  for (const RopeType type : {RopeType::kDefault, RopeType::kLinear, RopeType::kLlama3, RopeType::kYarn}) {
    if (name == rope_type_name(type)) return type;
  }
  keys.refuse(key, "one of default, linear, llama3, yarn");
}

void parse_llama3(const Keys& keys, RopeConfig& rope) {
  rope.factor = keys.number("factor", kRopeFactor);
  rope.low_freq_factor = keys.number("low_freq_factor", {0.0, 1e6});
  rope.high_freq_factor = keys.number("high_freq_factor", {0.0, 1e6});
  if (rope.high_freq_factor <= rope.low_freq_factor) keys.refuse("high_freq_factor", "more than low_freq_factor");
  rope.original_max_positions = keys.integer("original_max_position_embeddings", {1, kMaxModelPositions});
}

void parse_yarn(const Keys& keys, int max_positions, RopeConfig& rope) {
  rope.original_max_positions =
      keys.integer_or("original_max_position_embeddings", max_positions, {1, kMaxModelPositions});
  rope.factor = keys.number_or("factor", double(max_positions) / rope.original_max_positions, kRopeFactor);
  rope.beta_fast = keys.number_or("beta_fast", rope.beta_fast, {0.0, 1e6});
  rope.beta_slow = keys.number_or("beta_slow", rope.beta_slow, {0.0, 1e6});
  if (rope.beta_fast < rope.beta_slow) keys.refuse("beta_fast", "at least beta_slow");
  rope.truncate = keys.flag_or("truncate", true);
  if (keys.find("attention_factor")) rope.attention_factor = keys.number("attention_factor", {0.0, 1e6});
  // Zero means "not set" here, as in transformers.
  for (const auto& [key, target] :
       {std::pair("mscale", &rope.mscale), std::pair("mscale_all_dim", &rope.mscale_all_dim)}) {
    if (const json* value = keys.find(key); value && *value != 0) *target = keys.number(key, {0.0, 1e6});
  }
}

RopeConfig parse_rope(const Keys& top, int max_positions) {
  RopeConfig rope;
  refuse_partial_rotation(top);
  rope.theta = top.number_or("rope_theta", rope.theta, kRopeTheta);
  const char* section = rope_section(top);
  if (section == nullptr) return rope;

  const Keys keys(*top.find(section), fmt::format("{}: {}", top.owner(), section));
  refuse_partial_rotation(keys);
  if (keys.find("full_attention") || keys.find("sliding_attention")) {
    top.refuse(section, "one set of parameters for all layers");
  }
  if (keys.find("rope_theta")) {
    const double theta = keys.number("rope_theta", kRopeTheta);
    if (top.find("rope_theta") && theta != rope.theta) keys.refuse("rope_theta", "the same as rope_theta outside");
    rope.theta = theta;
  }
  rope.type = rope_type_of(keys);
  if (rope.type == RopeType::kLinear) rope.factor = keys.number("factor", kRopeFactor);
  if (rope.type == RopeType::kLlama3) parse_llama3(keys, rope);
  if (rope.type == RopeType::kYarn) parse_yarn(keys, max_positions, rope);
  return rope;
}

void parse_sizes(const Keys& keys, ModelConfig& config) {
  config.hidden_size = keys.integer("hidden_size", {1, kMaxModelSize});
  config.layers = keys.integer("num_hidden_layers", {1, kMaxModelLayers});
  config.heads = keys.integer("num_attention_heads", {1, kMaxModelSize});
  config.kv_heads = keys.integer_or("num_key_value_heads", config.heads, {1, kMaxModelSize});
  config.intermediate_size = keys.integer("intermediate_size", {1, kMaxModelSize});
  config.vocab_size = keys.integer("vocab_size", {1, kMaxModelSize});
  config.max_positions = keys.integer("max_position_embeddings", {1, kMaxModelPositions});
  if (config.heads % config.kv_heads != 0) {
    keys.refuse("num_key_value_heads", fmt::format("a divisor of num_attention_heads {}", config.heads));
  }
  // The Qwen3 config class fixes 128 where the others divide.
  constexpr int kQwen3HeadDim = 128;
  const bool divided = keys.find("head_dim") == nullptr && config.family != ModelFamily::kQwen3;
  if (divided && config.hidden_size % config.heads != 0) {
    keys.refuse("num_attention_heads", fmt::format("a divisor of hidden_size {}", config.hidden_size));
  }
  config.head_dim = divided ? config.hidden_size / config.heads : keys.integer_or("head_dim", kQwen3HeadDim, {2, 4096});
  if (config.head_dim % 2 != 0) keys.refuse("head_dim", fmt::format("an even number, not {}", config.head_dim));
  if (int64_t{config.heads} * config.head_dim > kMaxModelSize) {
    keys.refuse("num_attention_heads", fmt::format("heads * head_dim of at most {}", kMaxModelSize));
  }
}

void parse_biases(const Keys& keys, ModelConfig& config) {
  const bool attention_bias = keys.flag_or("attention_bias", false);
  if (keys.flag_or("mlp_bias", false)) keys.refuse("mlp_bias", "false: biases in the MLP are not supported");
  switch (config.family) {
    case ModelFamily::kLlama:
    case ModelFamily::kQwen3:
      config.qkv_bias = config.o_bias = attention_bias;
      break;
    case ModelFamily::kMistral:
      if (attention_bias) keys.refuse("attention_bias", "false: this family has no biases");
      break;
    case ModelFamily::kQwen2:
      config.qkv_bias = true;  // fixed in the architecture, whatever the key says
      break;
  }
  config.qk_norm = config.family == ModelFamily::kQwen3;
}

void refuse_unsupported(const Keys& keys) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (keys.find(key)) keys.refuse(key, "none: quantised weights are not supported");
  }
  if (keys.text_or("hidden_act", "silu") != "silu") keys.refuse("hidden_act", "\"silu\"");
}

}  // namespace

std::string_view family_name(ModelFamily family) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.family == family) return architecture.model_type;
  }
  return "";
}

ModelConfig parse_model_config(std::string_view text, const std::string& owner) {
  const json root = parse_strict_json(text, owner);
  const Keys keys(root, owner);
  ModelConfig config;
  config.family = family_of(keys);
  refuse_unsupported(keys);
  parse_sizes(keys, config);
  parse_biases(keys, config);
  config.rms_norm_eps = keys.number_or("rms_norm_eps", config.rms_norm_eps, {0.0, 1.0});
  config.tie_word_embeddings = keys.flag_or("tie_word_embeddings", false);
  config.sliding_window = active_window(keys, config.family, config.layers);
  config.rope = parse_rope(keys, config.max_positions);
  config.bos_ids = keys.ids("bos_token_id", config.vocab_size);
  config.eos_ids = keys.ids("eos_token_id", config.vocab_size);
  config.dtype = keys.text_or("dtype", keys.text_or("torch_dtype", ""));
  return config;
}

ModelConfig load_folder_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const MappedFile file = MappedFile::open(path);
  return parse_model_config(file.text(), path.string());
}

}  // namespace kv
