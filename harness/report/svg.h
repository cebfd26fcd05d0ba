#pragma once

#include <string>

#include "harness/report/picture.h"

namespace kv {

// A picture as an SVG file on white ground. Equal pictures give equal bytes.
std::string to_svg(const Picture& picture, const std::string& title);

// #rrggbb
std::string hex(const Color& color);

}  // namespace kv
