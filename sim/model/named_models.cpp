#include "sim/model/named_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "kernels/error.h"

namespace kv {

namespace {

constexpr std::array<NamedModel, 8> kModels = {{
    {"llama-3.1-8b", "Llama 3.1, 8.0 B parameters (meta-llama/Llama-3.1-8B)", R"({
      "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", "factor": 8,
      "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}})"},
    {"llama-3.1-405b", "Llama 3.1, 405.9 B parameters (meta-llama/Llama-3.1-405B)", R"({
      "model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128,
      "num_key_value_heads": 8, "intermediate_size": 53248, "vocab_size": 128256, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", "factor": 8,
      "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}})"},
    {"mistral-7b-v0.3", "Mistral 7B v0.3, 7.2 B parameters (mistralai/Mistral-7B-v0.3)", R"({
      "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32768, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000, "sliding_window": null})"},
    {"qwen2.5-32b", "Qwen2.5, 32.8 B parameters, biases on q, k and v (Qwen/Qwen2.5-32B)", R"({
      "model_type": "qwen2", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40,
      "num_key_value_heads": 8, "intermediate_size": 27648, "vocab_size": 152064, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000, "use_sliding_window": false})"},
    {"qwen3-1.7b", "Qwen3, 1.7 B parameters, q and k norms, tied embedding (Qwen/Qwen3-1.7B)", R"({
      "model_type": "qwen3", "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": true})"},
    {"qwen3-4b", "Qwen3, 4.0 B parameters, q and k norms, tied embedding (Qwen/Qwen3-4B)", R"({
      "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": true})"},
    {"r1-distill-qwen-7b",
     "DeepSeek-R1 distilled into Qwen2.5, 7.6 B parameters (deepseek-ai/DeepSeek-R1-Distill-Qwen-7B)",
     R"({"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
      "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-6, "rope_theta": 10000, "use_sliding_window": false})"},
    {"tiny", "no real model: 2 layers of width 64, to try things out in a second", R"({
      "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1024, "max_position_embeddings": 4096})"},
}};

}  // namespace

ModelConfig NamedModel::parse() const { return parse_model_config(config, std::string(name)); }

std::span<const NamedModel> named_models() { return kModels; }

const NamedModel& find_named_model(std::string_view name) {
  const auto found = std::find_if(kModels.begin(), kModels.end(), [&](const NamedModel& m) { return m.name == name; });
  if (found != kModels.end()) return *found;
  std::string known;
  for (const NamedModel& model : kModels) known += (known.empty() ? "" : ", ") + std::string(model.name);
  throw UserError(fmt::format("unknown model shape '{}' (expected one of: {})", name, known));
}

}  // namespace kv
