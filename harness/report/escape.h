#pragma once

#include <string>
#include <string_view>

namespace kv {

// Text from a CSV may hold any bytes (half a character of a token). These return valid UTF-8 on one line: a broken
// sequence becomes U+FFFD, a control character U+2400 + its code (its picture), so a newline in a token stays visible.
std::string printable(std::string_view text);

// Each of these calls printable() first.
std::string escape_html(std::string_view text);
std::string escape_markdown(std::string_view text);  // for a cell of a table
std::string escape_latex(std::string_view text);
std::string quote_gnuplot(std::string_view text);  // single-quoted: no backslash, backquote or macro is expanded

}  // namespace kv
