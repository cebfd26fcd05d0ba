#include "sim/model/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "kernels/check.h"

namespace kv {
namespace {

const utf8proc_uint8_t* bytes(std::string_view text) { return reinterpret_cast<const utf8proc_uint8_t*>(text.data()); }

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

struct Character {
  utf8proc_int32_t code;
  size_t length;
};

Character character_at(std::string_view text, size_t offset) {
  Character character{};
  const auto length =
      utf8proc_iterate(bytes(text) + offset, static_cast<utf8proc_ssize_t>(text.size() - offset), &character.code);
  KV_CHECK(length > 0);
  character.length = static_cast<size_t>(length);
  return character;
}

bool is_space(utf8proc_int32_t code) {
  if ((code >= 9 && code <= 13) || code == 0x85) return true;
  const auto category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Bytes that print as themselves keep their code point; the others follow from 256 on, in order.
bool prints(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr size_t kAlphabetEnd = 256 + 68;

std::array<int16_t, kAlphabetEnd> make_byte_of_code() {
  std::array<int16_t, kAlphabetEnd> byte_of_code;
  byte_of_code.fill(-1);
  size_t next = 256;
  for (int byte = 0; byte < 256; ++byte)
    byte_of_code[prints(byte) ? static_cast<size_t>(byte) : next++] = static_cast<int16_t>(byte);
  return byte_of_code;
}

}  // namespace

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t code = 0;
    const auto length = utf8proc_iterate(bytes(text) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    if (length <= 0) return at;
    at += static_cast<size_t>(length);
  }
  return std::nullopt;
}

std::string well_formed(std::string_view text) {
  std::string out;
  while (const std::optional<size_t> bad = first_invalid_utf8(text)) {
    out.append(text.substr(0, *bad)).append("\xEF\xBF\xBD");
    text.remove_prefix(*bad + 1);
  }
  return out.append(text);
}

size_t utf8_length_at(std::string_view text, size_t offset) {
  size_t end = offset + 1;
  while (end < text.size() && is_continuation(text[end])) ++end;
  return end - offset;
}

size_t utf8_boundary(std::string_view text, size_t offset) {
  if (offset >= text.size()) return text.size();
  while (offset > 0 && is_continuation(text[offset])) --offset;
  return offset;
}

std::string to_nfc(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* composed = nullptr;
  const auto length = utf8proc_map(bytes(text), static_cast<utf8proc_ssize_t>(text.size()), &composed,
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  KV_CHECK(length >= 0);
  return std::string(reinterpret_cast<const char*>(composed), static_cast<size_t>(length));
}

size_t leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Character character = character_at(text, at);
    if (!is_space(character.code)) break;
    at += character.length;
  }
  return at;
}

size_t trailing_space(std::string_view text) {
  size_t at = text.size();
  while (at > 0) {
    const size_t start = utf8_boundary(text, at - 1);
    if (!is_space(character_at(text, start).code)) break;
    at = start;
  }
  return text.size() - at;
}

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
  static const auto kByteOfCode = make_byte_of_code();
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const auto code = static_cast<size_t>(character.code);
    if (code >= kAlphabetEnd || kByteOfCode[code] < 0) return std::nullopt;
    result += static_cast<char>(kByteOfCode[code]);
    at += character.length;
  }
  return result;
}

}  // namespace kv
