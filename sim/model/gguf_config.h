#pragma once

#include <string>
#include <string_view>

#include "sim/io/gguf.h"
#include "sim/model/model_config.h"

namespace kv {

// What a GGUF file's metadata and directory say of the model. Architectures llama (Mistral is one), qwen2 and qwen3;
// biases and tied embeddings are told from the tensors that are there; RoPE scaling none, linear and yarn by its keys,
// that of Llama 3 by the factors of tensor rope_freqs.weight. What this project cannot compute exactly is a UserError
// that names the file, the key, its value and what was expected: other architectures, experts, partial rotation,
// another number of KV heads a layer, softcapping and scales of other kinds.
ModelConfig gguf_model_config(const GgufFile& file);

// The file's name for the tensor that a Hugging Face folder calls so.
std::string gguf_tensor_name(std::string_view name);

// Of the divisors of RoPE frequencies, which are configuration.
constexpr std::string_view kGgufRopeFactors = "rope_freqs.weight";

// Whether the rows of queries and keys stand in the order of llama's own code: the two dimensions that turn together
// are neighbours (2i, 2i + 1), where transformers has them half a head apart (i, i + head_dim / 2).
bool gguf_pairs_are_neighbours(const ModelConfig& config);

}  // namespace kv
