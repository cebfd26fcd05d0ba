#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace kv {

// JSON from files that may lie: a syntax error, a key that occurs twice in one object, or more than 32 levels of
// nesting throw a one-line UserError that begins with `owner` (the file) and gives line and column where the parser
// knows them.
nlohmann::json parse_strict_json(std::string_view text, std::string_view owner);

// `text` in double quotes with control characters escaped, shortened beyond 120 bytes: safe in a one-line message.
std::string in_quotes(std::string_view text);

// The value as compact JSON on one line, shortened likewise.
std::string shown_json(const nlohmann::json& value);

}  // namespace kv
