#pragma once

#include <string>

#include "kernels/backend.h"

namespace kv::cuda {

// Backend::accelerator(): product name, multiprocessors and bytes of memory of the GPU; the newest CUDA that its driver
// runs, the CUDA that this build was made with, and cuBLASLt as loaded.
Facts facts();
// Backend::device_identity(): the GPU's UUID, in hexadecimal.
std::string device_identity();

}  // namespace kv::cuda
