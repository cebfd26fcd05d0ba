#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "harness/spec/spec.h"

namespace kv {

// Returns the specs of the folder experiments, here, above or beside the program, sorted by name; none where there is
// no such folder.
std::vector<std::filesystem::path> experiment_files();

// Reads the spec that a command line names. UserError, with the nearest shipped one, where there is no such file, and
// where a table compares with what no case has (harness/cli/compared_values.h).
Spec load_named_spec(const std::string& file, std::span<const std::string> overrides = {});

}  // namespace kv
