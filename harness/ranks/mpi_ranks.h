#pragma once

#include <memory>

#include "harness/ranks/ranks.h"

namespace kv {

// Null where kvlab was built without MPI.
std::unique_ptr<Ranks> join_mpi_ranks();

}  // namespace kv
