#pragma once

#include <filesystem>
#include <string>

#include "sim/io/stored_path.h"

namespace kv {

// The content of `path`, unpacked where it lies packed (sim/io/stored_path.h). UserError names the file and why it
// cannot be read; one without a byte is refused, too.
std::string read_stored(const std::filesystem::path& path);

}  // namespace kv
