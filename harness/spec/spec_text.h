#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "harness/spec/yaml_document.h"

namespace kv {

// The words of a spec before they are read: with what it takes from the one that its key `like` names.
struct SpecText {
  YamlDocument document;  // without the key `like`
  std::string question;   // the file's first comment, or that of the spec that it is like
  bool derived = false;   // it has taken keys from another file
};

// `like: FILE`, relative to the folder of `file`: each top-level key that is not written here is FILE's, whole, and
// keeps its place there in messages. Overrides ("dotted.path=YAML") are applied afterwards. UserError at the key for a
// file that cannot be read or that is `like` another one itself, and as YamlDocument for either file.
SpecText read_spec_text(std::string_view yaml, const std::string& file, std::span<const std::string> overrides);

// What the key `like` of the spec in that file says; empty without the key. UserError as read_spec_text.
std::string base_of_spec(const std::filesystem::path& file);

}  // namespace kv
