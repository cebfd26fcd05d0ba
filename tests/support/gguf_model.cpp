#include "tests/support/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/backend.h"
#include "sim/model/gguf_config.h"
#include "tests/support/text_model.h"

namespace kv::ref {

namespace {

// Row i of a head goes to 2i, row i + head_dim / 2 to 2i + 1.
std::vector<float> interleaved(const std::vector<float>& values, int head_dim, size_t width) {
  std::vector<float> out(values.size());
  const auto half = static_cast<size_t>(head_dim / 2);
  for (size_t row = 0; row * width < values.size(); ++row) {
    const size_t head = row / (2 * half), i = row % (2 * half);
    const size_t to = head * 2 * half + (i < half ? 2 * i : 2 * (i - half) + 1);
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row * width), width,
                out.begin() + static_cast<std::ptrdiff_t>(to * width));
  }
  return out;
}

}  // namespace

GgufBuilder gguf_of(const Weights& weights) {
  const ModelConfig& config = weights.config();
  const bool llama = config.family == ModelFamily::kLlama || config.family == ModelFamily::kMistral;
  const std::string name = llama ? "llama" : std::string(family_name(config.family));
  GgufBuilder builder;
  builder.put_text("general.architecture", name);
  const auto put = [&](const char* key, int value) { builder.put_u32(name + "." + key, static_cast<uint32_t>(value)); };
  put("context_length", config.max_positions);
  put("embedding_length", config.hidden_size);
  put("block_count", config.layers);
  put("feed_forward_length", config.intermediate_size);
  put("attention.head_count", config.heads);
  put("attention.head_count_kv", config.kv_heads);
  put("attention.key_length", config.head_dim);
  put("attention.value_length", config.head_dim);
  put("rope.dimension_count", config.head_dim);
  builder.put_f32(name + ".attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_norm_eps));
  builder.put_f32(name + ".rope.freq_base", static_cast<float>(config.rope.theta));
  if (!config.bos_ids.empty()) {
    builder.put_u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(config.bos_ids[0]));
  }
  if (!config.eos_ids.empty()) {
    builder.put_u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(config.eos_ids[0]));
  }
  const auto cpu = make_backend("cpu");
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    const Tensor tensor = weights.load(expected, *cpu);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    tensor.download(values.data(), tensor.bytes());
    const size_t width = expected.shape.size() == 2 ? static_cast<size_t>(expected.shape[1]) : 1;
    if (llama &&
        (expected.name.find("q_proj") != std::string::npos || expected.name.find("k_proj") != std::string::npos)) {
      values = interleaved(values, config.head_dim, width);
    }
    builder.put_f32_tensor(gguf_tensor_name(expected.name), {expected.shape.rbegin(), expected.shape.rend()}, values);
  }
  return builder;
}

void put_byte_tokenizer(GgufBuilder& builder, std::string_view splitting) {
  std::vector<std::string> tokens(256);
  for (int byte = 0; byte < 256; ++byte) tokens[static_cast<size_t>(byte)] = byte_in_alphabet(byte);
  builder.put_text("tokenizer.ggml.model", "gpt2");
  builder.put_text("tokenizer.ggml.pre", splitting);
  builder.put_texts("tokenizer.ggml.tokens", tokens);
  builder.put_texts("tokenizer.ggml.merges", {});
}

}  // namespace kv::ref
