#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/policy.h"

namespace CLI {
class App;
}

namespace kv {

// Where the engine's verbs take their token ids from: exactly one of a text and a safetensors file.
struct IdsArguments {
  std::string text, ids;
};

void add_ids_options(CLI::App& verb, IdsArguments& arguments);

// A text's ids begin with the model's first token; those of a file are taken as they are.
std::vector<int32_t> load_ids(const IdsArguments& arguments, const std::string& model);

// "--policy" takes inline YAML or a file.
Policy load_policy(const std::string& yaml_or_file);

}  // namespace kv
