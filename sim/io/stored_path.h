#pragma once

#include <filesystem>

namespace kv {

// Large files may lie packed: <path>.xz in place of <path>, one .xz stream (sim/io/xz.h).
std::filesystem::path packed_file(std::filesystem::path path);

// Where the content of `path` lies: `path`, or where that is missing packed_file(path). `path` if both are there: then
// packing was cut short, or the packed one is older.
std::filesystem::path stored_file(const std::filesystem::path& path);

}  // namespace kv
