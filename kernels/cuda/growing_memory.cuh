#pragma once

#include <memory>

#include "kernels/backend.h"

namespace kv::cuda {

// Pieces of memory behind one range of addresses, as large as the device: what is there never moves.
std::unique_ptr<GrowingMemory> growing_memory();

}  // namespace kv::cuda
