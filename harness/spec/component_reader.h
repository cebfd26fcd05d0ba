#pragma once

#include <string>
#include <vector>

#include "harness/spec/map_reader.h"
#include "harness/spec/spec.h"

namespace kv {

// Reads a list of policies, metrics or tasks (`kind`), each a name or {<kind>: name, option: value}; a single entry
// stands for a list of one.
std::vector<Component> read_components(const YamlDocument& document, const YAML::Node& list, const std::string& kind);

Component read_component(const YamlDocument& document, const YAML::Node& node, const std::string& kind);

// One policy, metric or task in the form of a spec's list entry: a name, or {<kind>: name, option: value}. Inline YAML
// or, where that names a file, the file.
Component parse_component(const std::string& yaml_or_file, const std::string& kind);

// The keys of an entry beside its options, which its own policy, metric or task declares.
std::vector<KeySection> component_keys(const std::string& kind);

}  // namespace kv
