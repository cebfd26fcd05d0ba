#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kv {

// Offset of the first byte that does not belong to well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates).
std::optional<size_t> first_invalid_utf8(std::string_view text);

// Bytes that belong to no well-formed sequence become U+FFFD, each of them one.
std::string well_formed(std::string_view text);

// Bytes of the character that starts at `offset`. Requires well-formed text and offset < text.size().
size_t utf8_length_at(std::string_view text, size_t offset);

// The largest character boundary at or before `offset`.
size_t utf8_boundary(std::string_view text, size_t offset);

// Unicode normalization form C. Requires well-formed text.
std::string to_nfc(std::string_view text);

// Lengths of the white space (property White_Space) at the two ends of well-formed text.
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);

// GPT-2's printable alphabet: byte 0..255 is written as one character, so that vocabularies are text.
// The inverse mapping; nullopt where `text` holds a character outside the alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view text);

}  // namespace kv
