#pragma once

#include <memory>

#include "kernels/backend.h"

namespace kv::cuda {

// Backend::mark by an event on the backend's stream.
std::unique_ptr<Moment> mark();

}  // namespace kv::cuda
