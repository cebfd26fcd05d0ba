#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/io/gguf.h"

namespace kv {

// The tokenizer of a GGUF file's metadata as a tokenizer.json: kind gpt2 (byte-level BPE), whose splitting of texts is
// a name there, of gpt-2, smollm, llama-bpe (llama3, llama-v3) and qwen2 (deepseek-r1-qwen). Each becomes what the
// published tokenizer.json of that family says, NFC of qwen2 and whole words of llama-bpe included; control and
// user-defined tokens are found in a text. Another kind or name is a UserError that says which are known.
nlohmann::json gguf_tokenizer(const GgufFile& file);

}  // namespace kv
