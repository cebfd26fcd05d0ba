#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/spec/spec.h"

namespace kv {

// Precedence: defaults < the spec that the file is `like` < file < overrides ("dotted.path=YAML"). Throws UserError
// "file:line:column: …" for whatever the text alone shows to be wrong: syntax, unknown or doubled keys (with the
// nearest known one), wrong types, doubled names.
Spec parse_spec(std::string_view yaml, const std::string& file, std::span<const std::string> overrides = {});
Spec load_spec(const std::filesystem::path& file, std::span<const std::string> overrides = {});

// Every key that a spec's top level accepts.
std::vector<DeclaredParam> spec_keys();

}  // namespace kv
