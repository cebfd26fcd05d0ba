#pragma once

#include <filesystem>

namespace kv {

// Whether the path's name ends as those of files of own traces do, whatever it holds.
bool is_own_traces(const std::filesystem::path& path);

// Prints what a file of own traces holds (sim/tasks/own_traces.h). UserError where it is none.
void inspect_own_traces(const std::filesystem::path& file);

}  // namespace kv
