#pragma once

#include <vector>

#include "harness/spec/map_reader.h"
#include "harness/spec/spec.h"

namespace kv {

// Reads the spec's `data`: names of tasks, or maps with one of the keys task, text, ids and jsonl; a single entry
// stands for a list of one. `samples`: of entries that state none. Names that appear twice are UserErrors.
std::vector<DataSpec> read_data(const YamlDocument& document, const YAML::Node& list, int samples);

std::vector<KeySection> data_keys();

}  // namespace kv
