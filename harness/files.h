#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kv {

// In the name of a file that is not whole yet.
inline constexpr std::string_view kPartialFile = ".partial";

// After a crash or a full disk there is either the old file or the new one, never a part: written beside `path`,
// synced, renamed. UserError names the path and the system's reason. `writer` tells those apart that may write the same
// file at once, of which the last one's stays.
void write_atomically(const std::filesystem::path& path, std::string_view content, std::string_view writer = {});
// Nothing where there is no such file; UserError names the path and the system's reason.
void remove_file(const std::filesystem::path& path);
// The whole file; UserError names the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

}  // namespace kv
