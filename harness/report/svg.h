#pragma once

#include <string>

#include "harness/report/picture.h"

namespace kv {

// A picture as an SVG file on white ground. Equal pictures give equal bytes. Its ids and classes begin with `prefix`,
// by which those of several pictures on one page differ.
std::string to_svg(const Picture& picture, const std::string& title, const std::string& prefix = "");

// #rrggbb
std::string hex(const Color& color);

}  // namespace kv
