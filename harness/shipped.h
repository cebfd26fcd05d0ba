#pragma once

#include <filesystem>

namespace kv {

// A file, which may lie packed (sim/io/stored_file.h), or folder that ships with kvlab, such as experiments/data: in
// folder `from`, the current one, the program's own or one above these. Empty where there is none.
std::filesystem::path find_shipped(const std::filesystem::path& relative, const std::filesystem::path& from = {});

}  // namespace kv
