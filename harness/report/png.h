#pragma once

#include <string>

#include "harness/report/picture.h"

namespace kv {

// A PNG with a palette, one pixel a cell; blank cells are transparent. Equal rasters give equal bytes.
std::string to_png(const Raster& raster);

std::string base64(std::string_view bytes);

}  // namespace kv
