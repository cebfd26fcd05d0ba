#pragma once

#include <filesystem>

namespace kv::ref {

// The tiny Llama of tests/data in a folder of its own, with a tokenizer whose tokens are the 256 bytes: it reads texts,
// and loads in a hundredth of the time of the model that is shipped.
void make_text_model(const std::filesystem::path& folder);

}  // namespace kv::ref
