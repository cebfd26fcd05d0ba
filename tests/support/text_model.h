#pragma once

#include <filesystem>
#include <string>

namespace kv::ref {

// The tiny Llama of tests/data in a folder of its own, with a tokenizer whose tokens are the 256 bytes: it reads texts,
// and loads in a hundredth of the time of the model that is shipped.
void make_text_model(const std::filesystem::path& folder);

// The byte as GPT-2's tokenizer writes it: itself where that can be seen, else a character from U+0100 on.
std::string byte_in_alphabet(int byte);

}  // namespace kv::ref
