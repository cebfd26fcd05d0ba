#include "sim/model/source_info.h"

#include <cmath>

namespace kv {

float SourceInfo::scale() const { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))); }

}  // namespace kv
