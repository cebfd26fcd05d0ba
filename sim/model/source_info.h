#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kv {

// The shape of what queries, keys and values come from, a model or a trace, and what it can offer.
struct SourceInfo {
  std::string name;
  std::filesystem::path folder{};  // of the model's files; empty for traces and random weights
  int layers = 0;                  // those replayed
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int width = 0;
  std::vector<int> layer_numbers;  // [layers], as the model counts them
  bool has_losses = false;         // a trace is not fed back: no loss under a policy
  bool has_pre_rope_queries = false;
  bool has_pre_rope_keys = false;
  bool has_inputs = false;
  bool has_output_weight = false;
  std::vector<float> inv_freq;  // [head_dim / 2], empty where unknown
  float attention_factor = 1;

  int group() const { return q_heads / kv_heads; }
  float scale() const;  // 1 / sqrt(head_dim)
};

}  // namespace kv
