#pragma once

#include <stdexcept>

namespace kv {

// What ends a case as a row with its reason or, outside of cases, the program with exit code 2. Thrown as itself it is
// a user's mistake: one clear line that names the owner, the offending value and what was expected.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What was asked for is larger than the memory: the run can go on with something smaller.
struct MemoryError : UserError {
  using UserError::UserError;
};

// A cache's page table that cannot be right (kernels/check_pages.h). A bug, not a user's mistake; but since nothing has
// been read through the table yet, it spoils one case only, which ends as it would for a user's: the run goes on.
struct PageError : UserError {
  using UserError::UserError;
};

// A number that is computed and is a NaN or infinite: what follows from it would mean nothing. A bug, or a model that
// overflows; it spoils one case only.
struct NotFiniteError : UserError {
  using UserError::UserError;
};

}  // namespace kv
