#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kv {

constexpr std::size_t kUnpackLimit = std::size_t{1} << 28;  // bytes

// One .xz stream with a CRC-64, at liblzma's preset 6e: equal contents give equal bytes for one version of it.
std::string xz(std::string_view content);

// The inverse. What is broken, truncated, longer than one stream or unpacks to more than `limit` bytes throws UserError
// "<file>: ...": a small file may not fill the memory.
std::string unxz(std::string_view packed, std::string_view file, std::size_t limit = kUnpackLimit);

}  // namespace kv
