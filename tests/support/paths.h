#pragma once

#include <string>
#include <string_view>

namespace kv::ref {

// A file of the source tree, `relative` to its root, and the kvlab binary. The build's own; where the tests run on
// another machine than the one that built them, the environment variables KV_SOURCE_DIR and KV_BINARY take their place.
std::string source_path(std::string_view relative);
std::string binary_path();

}  // namespace kv::ref
