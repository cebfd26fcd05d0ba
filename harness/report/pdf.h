#pragma once

#include <string>

#include "harness/report/picture.h"

namespace kv {

// A picture as a PDF of one page, a pixel being 3/4 of a point, its text in the standard Helvetica, which every reader
// has: characters beyond Windows-1252 are spelt out (tau, <=). Without a date: equal pictures give equal bytes.
std::string to_pdf(const Picture& picture, const std::string& title);

}  // namespace kv
