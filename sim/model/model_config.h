#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/rope_scaling.h"

namespace kv {

enum class ModelFamily { kLlama, kMistral, kQwen2, kQwen3 };

std::string_view family_name(ModelFamily family);  // as config.json's model_type spells it

// A decoder of a supported family: pre-norm blocks with RMSNorm, grouped-query attention with rotary positions, SwiGLU.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int layers = 0;
  int hidden_size = 0;
  int heads = 0;  // query heads, a multiple of kv_heads; query head h reads KV head h / (heads / kv_heads)
  int kv_heads = 0;
  int head_dim = 0;  // even; heads * head_dim need not equal hidden_size
  int intermediate_size = 0;
  int vocab_size = 0;
  int max_positions = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;    // RMSNorm over head_dim of every query and key head, before the rotation
  int sliding_window = 0;  // 0: none. Otherwise exact only for sequences of at most this many tokens
  RopeConfig rope;
  std::vector<int> bos_ids;  // empty where the config names none
  std::vector<int> eos_ids;
  std::string dtype;  // as stated, for display; the weights say for themselves

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
};

// Reads a Hugging Face config.json, with the defaults of transformers 5 where a key is absent. What this project cannot
// compute exactly is a UserError that names `owner` (the file), the key, its value and what was expected: other
// architectures, activations but silu, MLP biases, partial rotation, quantised weights, other rope types.
ModelConfig parse_model_config(std::string_view json, const std::string& owner);

// That of a Hugging Face folder.
ModelConfig load_folder_config(const std::filesystem::path& folder);

}  // namespace kv
