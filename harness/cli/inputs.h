#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/policy/policy.h"

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace kv {

// --model of a verb: a folder, a GGUF file, or OWNER/NAME in the local Hugging Face cache. What is read is what was
// found.
void add_model_option(CLI::App& verb, std::string& model);

// Where the engine's verbs take their token ids from: exactly one of a text and a safetensors file.
struct IdsArguments {
  std::string text, ids;
};

// Returns the options, for a verb that knows another source.
std::vector<CLI::Option*> add_ids_options(CLI::App& verb, IdsArguments& arguments);

// A text's ids begin with the model's first token; those of a file are taken as they are.
std::vector<int32_t> load_ids(const IdsArguments& arguments, const std::string& model);

// The same of a text itself.
std::vector<int32_t> ids_of_text(const std::string& text, const std::string& model);

// Refuses numbers below `least`; CLI11's own checks print the largest double as the upper end of their range.
CLI::Validator at_least(double least);

// Refuses every other word, with the nearest of these.
CLI::Validator any_word_of(std::vector<std::string> words);

// "--policy" takes inline YAML or a file. Throws UserError, too, where one of its slots cannot serve that model.
Policy load_policy(const std::string& yaml_or_file, const std::string& model);
// The same for verbs that tell what events leave: without an admission or a selection.
Policy load_evicting_policy(const std::string& yaml_or_file, const std::string& model);

}  // namespace kv
