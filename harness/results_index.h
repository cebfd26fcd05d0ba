#pragma once

#include <filesystem>

namespace kv {

// Writes <results>/README.md, an index of the folders in `results` that hold a spec and a manifest, in the order of
// their names. A function of those two and of which plots are there. UserError names a file that cannot be read.
void write_index(const std::filesystem::path& results);

// The same where `folder`, a result just drawn, lies beside an index that the tool has written; else nothing.
void refresh_index_beside(const std::filesystem::path& folder);

}  // namespace kv
