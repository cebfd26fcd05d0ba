#include "harness/report/escape.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <utility>

namespace kv {
namespace {

// Length of the well-formed UTF-8 sequence at the start of text, 0 where there is none (Unicode 15, table 3-7).
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<std::uint8_t>(text[i]) : std::uint8_t{0};
  };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return tail(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool overlong = first == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = first == 0xed && byte(1) > 0x9f;
    return tail(1) && tail(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool overlong = first == 0xf0 && byte(1) < 0x90;
    const bool beyond = first == 0xf4 && byte(1) > 0x8f;
    return tail(1) && tail(2) && tail(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

template <std::size_t N>
std::string replace(std::string_view text, const std::array<std::pair<std::string_view, std::string_view>, N>& table) {
  std::string out;
  while (!text.empty()) {
    bool found = false;
    for (const auto& [from, to] : table) {
      if (!text.starts_with(from)) continue;
      out += to;
      text.remove_prefix(from.size());
      found = true;
      break;
    }
    if (found) continue;
    out += text.front();
    text.remove_prefix(1);
  }
  return out;
}

using Pair = std::pair<std::string_view, std::string_view>;

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    const auto first = static_cast<std::uint8_t>(text.front());
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (first < 0x20 || first == 0x7f) {
      out += first == '\n' ? "\\n" : first == '\t' ? "\\t" : fmt::format("\\x{:02x}", first);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string escape_html(std::string_view text) {
  constexpr std::array<Pair, 5> kTable = {
      Pair{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}};
  return replace(printable(text), kTable);
}

std::string escape_markdown(std::string_view text) {
  constexpr std::array<Pair, 6> kTable = {Pair{"\\", "\\\\"}, {"|", "\\|"},  {"*", "\\*"},
                                          {"`", "\\`"},       {"<", "&lt;"}, {"](", "]\\("}};
  return replace(printable(text), kTable);
}

std::string escape_latex(std::string_view text) {
  constexpr std::array<Pair, 24> kTable = {Pair{"\\", "\\textbackslash{}"},
                                           {"{", "\\{"},
                                           {"}", "\\}"},
                                           {"$", "\\$"},
                                           {"&", "\\&"},
                                           {"#", "\\#"},
                                           {"_", "\\_"},
                                           {"%", "\\%"},
                                           {"~", "\\textasciitilde{}"},
                                           {"^", "\\textasciicircum{}"},
                                           {"<", "\\textless{}"},
                                           {">", "\\textgreater{}"},
                                           {"\xc2\xb1", "$\\pm$"},             // plus-minus
                                           {"\xcf\x84", "$\\tau$"},            // tau
                                           {"\xce\xb5", "$\\varepsilon$"},     // epsilon
                                           {"\xc3\x97", "$\\times$"},          // times
                                           {"\xe2\x86\x93", "$\\downarrow$"},  // down arrow
                                           {"\xe2\x86\x91", "$\\uparrow$"},    // up arrow
                                           {"\xe2\x89\xa4", "$\\le$"},         // at most
                                           {"\xe2\x89\xa5", "$\\ge$"},         // at least
                                           {"\xe2\x80\x93", "--"},             // en dash
                                           {"\xe2\x80\xa0", "$\\dagger$"},     // dagger
                                           {"\xc2\xb5", "$\\mu$"},             // micro
                                           {"\xef\xbf\xbd", "?"}};
  return replace(printable(text), kTable);
}

}  // namespace kv
