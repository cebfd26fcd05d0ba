#pragma once

#include <memory>

#include "harness/ranks/ranks.h"

namespace kv {

bool is_built_with_mpi();

// Null where it is not.
std::unique_ptr<Ranks> join_mpi_ranks();

}  // namespace kv
