#include "tests/support/hostile.h"

#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/check.h"
#include "sim/io/safetensors.h"

namespace kv::ref {

namespace {

constexpr std::array<std::string_view, 30> kNumbers = {"-1",
                                                       "0",
                                                       "1",
                                                       "2",
                                                       "-0.0",
                                                       "1.5",
                                                       "0.5",
                                                       "nan",
                                                       "NaN",
                                                       "inf",
                                                       "-Infinity",
                                                       ".inf",
                                                       "1e999",
                                                       "-1e999",
                                                       "1e308",
                                                       "1e-320",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967296",
                                                       "9223372036854775807",
                                                       "18446744073709551616",
                                                       "123456789012345678901234567890",
                                                       "0x10",
                                                       "1_000",
                                                       "\"3\"",
                                                       "null",
                                                       "true",
                                                       "[]",
                                                       "{}",
                                                       "1,5"};

const std::array<std::string, 16> kWords = {"",
                                            " ",
                                            "..",
                                            "../../x",
                                            "/dev/zero",
                                            "/",
                                            std::string("\0", 1),
                                            "\n",
                                            "\x1b[31m\x07",
                                            "\\u0000\\n",
                                            "\xff\xfe",
                                            "\xed\xa0\x80",
                                            "\xe2\x80\xae",
                                            std::string(5000, 'x'),
                                            "\"',;|<&>#%\\",
                                            "--help"};

// A stretch of `text` in which `belongs` holds throughout, begun at a random place; empty where there is none.
template <class Belongs>
std::pair<size_t, size_t> stretch(const std::string& text, Random& random, const Belongs& belongs) {
  if (text.empty()) return {0, 0};
  size_t begin = random.below(text.size());
  for (size_t looked = 0; looked < text.size() && !belongs(text[begin]); ++looked) begin = (begin + 1) % text.size();
  size_t end = begin;
  while (begin > 0 && belongs(text[begin - 1])) --begin;
  while (end < text.size() && belongs(text[end])) ++end;
  return {begin, std::max(begin, end)};
}

bool in_number(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool in_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; }
bool in_line(char c) { return c != '\n'; }

void replace_number(std::string& text, Random& random) {
  const auto [begin, end] = stretch(text, random, in_number);
  text.replace(begin, end - begin, random.choice(kNumbers));
}

void replace_word(std::string& text, Random& random) {
  const auto [begin, end] = stretch(text, random, in_word);
  text.replace(begin, end - begin, random.choice(kWords));
}

void flip_byte(std::string& text, Random& random) {
  if (text.empty()) return;
  char& byte = text[random.below(text.size())];
  byte = static_cast<char>(random.below(256));
  if (in_number(byte)) byte = '?';
}

void double_line(std::string& text, Random& random) {
  const auto [begin, end] = stretch(text, random, in_line);
  text.insert(end, "\n" + text.substr(begin, end - begin));
}

void remove_line(std::string& text, Random& random) {
  const auto [begin, end] = stretch(text, random, in_line);
  text.erase(begin, end - begin);
}

void move_piece(std::string& text, Random& random) {
  if (text.empty()) return;
  const size_t begin = random.below(text.size());
  const std::string piece = text.substr(begin, 1 + random.below(20));
  text.erase(begin, piece.size());
  text.insert(random.below(text.size() + 1), piece);
}

void truncate(std::string& text, Random& random) { text.resize(random.below(text.size() + 1)); }

void nest(std::string& text, Random& random) {
  const std::array<std::string_view, 4> kOpenings = {"[", "{\"a\":", "- ", "{a: "};
  std::string deep;
  for (const std::string_view opening = random.choice(kOpenings); deep.size() < 3000;) deep += opening;
  text.insert(random.below(text.size() + 1), deep);
}

void change_line_ends(std::string& text, Random& random) {
  const std::string end = random.chance(0.5) ? "\r\n" : "\r";
  std::string changed;
  for (const char c : text) changed += c == '\n' ? end : std::string(1, c);
  text = changed;
}

void mark_encoding(std::string& text, Random& random) {
  const std::array<std::string_view, 3> kMarks = {"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff"};
  text.insert(0, random.choice(kMarks));
}

void anchor(std::string& text, Random& random) {
  const std::array<std::string_view, 4> kAnchors = {"&a ", "*a ", "!!python/object:os.system ", "<<: *a\n"};
  text.insert(random.below(text.size() + 1), random.choice(kAnchors));
}

using Change = void (*)(std::string&, Random&);
// What changes a value reaches further into a reader than what breaks the syntax, and is drawn three times as often.
constexpr std::array<Change, 3> kOfValues = {replace_number, replace_word, double_line};
constexpr std::array<Change, 7> kOfSyntax = {flip_byte, remove_line, move_piece, truncate, nest, anchor, mark_encoding};

std::string with_length(const std::string& header, std::string_view data, uint64_t length) {
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(header).append(data);
}

}  // namespace

std::string hostile_text(std::string text, Random& random) {
  if (random.chance(0.03)) change_line_ends(text, random);
  const uint64_t changes = random.chance(0.6) ? 1 : 1 + random.below(3);
  for (uint64_t change = 0; change < changes; ++change) {
    (random.chance(0.75) ? random.choice(kOfValues) : random.choice(kOfSyntax))(text, random);
  }
  return text;
}

std::string hostile_safetensors(std::string_view file, Random& random) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::string header(file.substr(sizeof length, length));
  std::string data(file.substr(sizeof length + length));
  const std::array<uint64_t, 5> kLies = {0, length + 1, uint64_t{1} << 40, std::numeric_limits<uint64_t>::max(),
                                         length / 2};
  switch (random.below(5)) {
    case 0:
      return with_length(header, data, random.choice(kLies));
    case 1:
      data.resize(random.below(data.size() + 1));
      return with_length(header, data, length);
    case 2:
      data[random.below(data.size())] = static_cast<char>(random.below(256));
      return with_length(header, data, length);
    default:
      header = hostile_text(header, random);
      return with_length(header, data, header.size());
  }
}

std::string with_hostile_numbers(std::string file, std::string_view tensor, Random& random) {
  constexpr std::array<float, 4> kHostile = {
      std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
      -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()};
  const SafetensorsFile parsed = SafetensorsFile::from_bytes(std::as_bytes(std::span(file)), "hostile");
  const TensorInfo& info = parsed.require(tensor);
  const auto data = static_cast<size_t>(parsed.bytes(info).data() - reinterpret_cast<const std::byte*>(file.data()));
  KV_CHECK(info.dtype == Dtype::kF32 || info.dtype == Dtype::kBF16);
  const float number = random.choice(kHostile);
  const size_t size = dtype_bytes(info.dtype);
  const char* const stored = reinterpret_cast<const char*>(&number) + sizeof number - size;  // BF16: its upper half
  const auto elements = static_cast<uint64_t>(info.elements());
  for (uint64_t count = random.chance(0.5) ? 1 : elements / 2; count > 0; --count) {
    std::memcpy(file.data() + data + size * random.below(elements), stored, size);
  }
  return file;
}

std::string hostile_gguf(std::string file, size_t head, Random& random) {
  constexpr std::array<uint64_t, 9> kLies = {0,
                                             1,
                                             31,
                                             255,
                                             uint64_t{1} << 31,
                                             uint64_t{1} << 40,
                                             std::numeric_limits<uint64_t>::max(),
                                             uint64_t{0x7fc000007f800000},
                                             uint64_t{0x7c007e00ffffffff}};  // NaN and infinity in f32, in f16
  const uint64_t changes = 1 + random.below(3);
  for (uint64_t change = 0; change < changes; ++change) {
    // Most changes fall on the counts, the keys and the directory, and not on lists of thousands of texts.
    const size_t begin = random.chance(0.2) ? 0 : random.chance(0.5) ? 4 : head - std::min<size_t>(head, 4000);
    const size_t end =
        random.chance(0.15) ? file.size() : std::min(file.size(), random.chance(0.5) ? begin + 900 : head);
    if (end <= begin + sizeof(uint64_t)) continue;
    const size_t at = begin + random.below(end - begin - sizeof(uint64_t));
    switch (random.below(5)) {
      case 0:
        file.resize(at);
        break;
      case 1:
        file[at] = static_cast<char>(random.below(256));
        break;
      case 2:
        file.erase(at, 1 + random.below(16));
        break;
      default: {
        const uint64_t lie = random.choice(kLies);
        std::memcpy(file.data() + at, &lie, random.chance(0.5) ? sizeof lie : sizeof(uint32_t));
      }
    }
  }
  return file;
}

}  // namespace kv::ref
