#pragma once

#include <cstddef>

namespace kv::cuda {

// Tells compute-sanitizer's initcheck that work on the stream writes this memory: it does not see what bulk stores
// (TMA) write, as kernels of libraries use them, and would report every later read. A few instructions where no tool
// listens.
void mark_written(const void* data, size_t bytes);

}  // namespace kv::cuda
