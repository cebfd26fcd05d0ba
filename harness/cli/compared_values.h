#pragma once

#include "harness/spec/spec.h"

namespace kv {

// Throws UserError where a table compares with a value that no case of the spec has in that column (`with` in `paired`
// and in its `beside`), and that would be found missing only when the rows are there. What --set changed may lack it:
// the table's note says so then.
void check_compared_values(const Spec& spec);

}  // namespace kv
