#pragma once

#include <string>
#include <vector>

#include "harness/report/picture.h"

namespace kv {

struct Drawing {
  Picture picture;
  std::vector<std::string> notes;  // samples, meaning of the band, binning
  std::string empty;               // why there is nothing to draw; then no file is written
};

}  // namespace kv
