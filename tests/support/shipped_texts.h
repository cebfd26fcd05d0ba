#pragma once

#include "sim/model/tokenizer/tokenizer.h"
#include "sim/tasks/text_data.h"

namespace kv::ref {

// The reference model's tokenizer and the texts that the repository ships, each loaded once.
const Tokenizer& shipped_tokenizer();
const TextData& shipped_texts();

}  // namespace kv::ref
