#pragma once

#include <string>
#include <string_view>

#include "sim/tasks/random.h"

namespace kv::ref {

// The text after one to three changes that a careless or malicious hand could make: numbers that no reader expects,
// words cut, doubled or filled with control characters, other line ends, marks of other encodings, nesting without end,
// pieces moved, missing or torn off. Digits are never put in by themselves, so that no input asks for honest work
// without end.
std::string hostile_text(std::string text, Random& random);

// A safetensors file with its header or its data changed, or with a length that lies.
std::string hostile_safetensors(std::string_view file, Random& random);

// The same file with some of the numbers of one tensor, F32 or BF16, replaced by NaN, infinities or the largest number.
std::string with_hostile_numbers(std::string file, std::string_view tensor, Random& random);

// A GGUF file with its head or its data changed: bytes and numbers that no reader expects, counts and offsets that lie,
// the file cut anywhere. `head`: the bytes before the data.
std::string hostile_gguf(std::string file, size_t head, Random& random);

}  // namespace kv::ref
