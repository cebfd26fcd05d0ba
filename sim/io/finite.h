#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "sim/io/safetensors.h"

namespace kv {

// UserError names the first of `values` that is NaN or infinite. They are the elements of the tensor from flat index
// `first` on; `file` holds it.
void refuse_non_finite(std::span<const float> values, int64_t first, const TensorInfo& tensor, std::string_view file);

}  // namespace kv
