#pragma once

#include <cstdint>
#include <filesystem>

#include "sim/model/model_config.h"
#include "sim/model/tokenizer/tokenizer.h"

namespace kv {

// Whether the model has a tokenizer, which may be of a kind that is not read.
bool has_tokenizer(const std::filesystem::path& model);

// That of a model's folder or GGUF file; UserError with the hint to pass ids where it has none.
Tokenizer load_tokenizer(const std::filesystem::path& model);

// Where a text begins for this model: its bos token, else <|endoftext|>. UserError where it has neither.
int32_t first_token_of(const ModelConfig& config, const Tokenizer& tokenizer);

}  // namespace kv
