#pragma once

#include "kernels/backend.h"

namespace kv::cpu {

// The memory of the machine, and no more than the process may take (ulimit -v): a limit would end a run in its middle
// that could have been refused.
Memory memory();

}  // namespace kv::cpu
