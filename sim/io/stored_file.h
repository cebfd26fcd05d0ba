#pragma once

#include <filesystem>
#include <string>

namespace kv {

// Large files may lie packed: <path>.xz in place of <path>, one .xz stream (sim/io/xz.h).
std::filesystem::path packed_file(std::filesystem::path path);

// Where the content of `path` lies: `path`, or where that is missing packed_file(path). `path` if both are there: then
// packing was cut short, or the packed one is older.
std::filesystem::path stored_file(const std::filesystem::path& path);

// That content, unpacked. UserError names the file and why it cannot be read; one without a byte is refused, too.
std::string read_stored(const std::filesystem::path& path);

}  // namespace kv
