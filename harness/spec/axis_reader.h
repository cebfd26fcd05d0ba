#pragma once

#include <vector>

#include "harness/spec/map_reader.h"
#include "harness/spec/spec.h"

namespace kv {

// Reads the spec's `axes`: a map of name: [values], or of name: [{column: value}] for columns that move together.
// Points and columns that appear twice, and columns that every result has, are UserErrors.
std::vector<Axis> read_axes(const YamlDocument& document, const YAML::Node& map);

}  // namespace kv
