#pragma once

#include "sim/model/weights.h"
#include "tests/support/gguf_file.h"

namespace kv::ref {

// The model as a GGUF file in F32, its rows of queries and keys in the order of that format. Architecture llama for
// families llama and mistral.
GgufBuilder gguf_of(const Weights& weights);

// Adds a tokenizer of kind gpt2 whose tokens are the 256 bytes, token_type of none of them set, and no merges.
void put_byte_tokenizer(GgufBuilder& builder, std::string_view splitting);

}  // namespace kv::ref
