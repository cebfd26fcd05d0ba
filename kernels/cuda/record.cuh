#pragma once

#include <functional>
#include <memory>

#include "kernels/backend.h"

namespace kv::cuda {

// Backend::record by a CUDA graph: captured once, launched at each run.
std::unique_ptr<Recording> record(const std::function<void()>& work);

}  // namespace kv::cuda
