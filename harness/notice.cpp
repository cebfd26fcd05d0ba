#include "harness/notice.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace kv {

namespace {

constexpr std::size_t kLongestLine = 2000;

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

std::string one_line(std::string_view text) {
  std::size_t end = std::min(text.size(), kLongestLine);
  while (end < text.size() && end > kLongestLine - 4 && continues_character(text[end])) --end;
  std::string line(text.substr(0, end));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return end < text.size() ? line + "..." : line;
}

void notice(std::string_view text) {
  const std::string line = one_line(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace kv
