#pragma once

#include <string>
#include <string_view>

namespace kv {

// Text from a CSV may hold any bytes (half a character of a token). This returns valid UTF-8 on one line: a broken
// sequence becomes U+FFFD, a control character its escape (\n, \t, \x07), so a token that is a line feed stays visible.
std::string printable(std::string_view text);

// Each of these calls printable() first.
std::string escape_html(std::string_view text);
std::string escape_markdown(std::string_view text);  // for a cell of a table
std::string escape_latex(std::string_view text);

}  // namespace kv
