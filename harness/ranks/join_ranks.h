#pragma once

#include <memory>

#include "harness/ranks/ranks.h"

namespace kv {

std::unique_ptr<Ranks> lone_rank();
// Those of this launch; once a process. UserError where several were launched and kvlab was built without MPI.
std::unique_ptr<Ranks> join_ranks();

}  // namespace kv
