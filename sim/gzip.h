#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kv {

constexpr std::size_t kGzipLimit = (std::size_t{1} << 32) - 1;  // bytes; the most zlib takes at once

// One gzip member (RFC 1952) at level 9, without time and name: equal contents give equal bytes for one version of
// zlib. Contents over `kGzipLimit`, which gunzip would refuse, throw UserError; `file` is named in errors.
std::string gzip(std::string_view content, std::string_view file);

// The inverse. What is broken, truncated, longer than one member or unpacks to more than `limit` bytes throws UserError
// "<file>: ...": a small file may not fill the memory.
std::string gunzip(std::string_view packed, std::string_view file, std::size_t limit = kGzipLimit);

}  // namespace kv
