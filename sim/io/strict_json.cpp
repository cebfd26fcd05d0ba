#include "sim/io/strict_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "kernels/error.h"

namespace kv {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxShown = 120;

// The library's own message, less its error number; it quotes the offending token, which can be long or unprintable.
std::string syntax_message(std::string_view what) {
  const std::size_t start = what.find("] ");
  std::string text(start == std::string_view::npos ? what : what.substr(start + 2));
  if (text.size() > 2 * kMaxShown) text = text.substr(0, 2 * kMaxShown) + "...";
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace

json parse_strict_json(std::string_view text, std::string_view owner) {
  std::vector<std::set<std::string>> open;  // the keys seen in each open object; empty for an array
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (open.size() == kMaxDepth)
          throw UserError(fmt::format("{}: nested deeper than {} levels", owner, kMaxDepth));
        open.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        open.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        if (!open.back().insert(key).second)
          throw UserError(fmt::format("{}: key {} occurs twice", owner, in_quotes(key)));
        break;
      }
      case json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    throw UserError(fmt::format("{}: not valid JSON: {}", owner, syntax_message(error.what())));
  }
}

std::string shown_json(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

std::string in_quotes(std::string_view text) {
  if (text.size() <= kMaxShown) return shown_json(json(std::string(text)));
  return shown_json(json(std::string(text.substr(0, kMaxShown - 2)))) + "...";
}

}  // namespace kv
