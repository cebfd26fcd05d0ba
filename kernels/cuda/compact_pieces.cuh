#pragma once

#include "kernels/compact.h"

namespace kv::cuda {

// compact() where rows are fewer than multiprocessors: many blocks a row, piece by piece of it.
void compact_pieces(const CompactArgs& args);

}  // namespace kv::cuda
