#pragma once

#include <string_view>

#include "sim/io/safetensors.h"

namespace kv::ref {

// Expected values that lie packed in the source tree: a path from its root, without the ".xz".
SafetensorsFile open_packed(std::string_view path);

}  // namespace kv::ref
