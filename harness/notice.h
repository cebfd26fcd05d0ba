#pragma once

#include <string>
#include <string_view>

namespace kv {

// The text as one line that a terminal and a log can bear: messages quote names and values of files that anyone may
// have written. Control characters become '?', and what is longer than 2000 bytes is cut and ends in "...".
std::string one_line(std::string_view text);

// Writes one_line(text) and a line's end to stderr. Where nobody can read it (a full disk, a closed pipe) the work goes
// on: nothing throws.
void notice(std::string_view text);

}  // namespace kv
