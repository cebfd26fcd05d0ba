#pragma once

#include <vector>

#include "harness/spec/map_reader.h"
#include "harness/spec/spec.h"

namespace kv {

// Reads the spec's `model`: a path, {random: SHAPE}, or a list of these.
std::vector<ModelChoice> read_models(const YamlDocument& document, const YAML::Node& node);

// The keys of `model` where it is a map.
std::vector<DeclaredParam> model_keys();

}  // namespace kv
