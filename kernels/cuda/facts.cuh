#pragma once

#include "kernels/backend.h"

namespace kv::cuda {

// Backend::accelerator(): product name, multiprocessors and bytes of memory of the GPU; the newest CUDA that its driver
// runs, the CUDA that this build was made with, and cuBLASLt as loaded.
Facts facts();

}  // namespace kv::cuda
