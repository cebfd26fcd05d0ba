#pragma once

#include <string>

#include "harness/result_folder.h"
#include "harness/rows.h"
#include "harness/run_options.h"
#include "harness/spec/spec.h"

namespace kv {

// Replaces rows, spec and manifest in the result folder together; then, unless that is for later, tables, plots and
// page, together as well, and returns the tables. Where these fail (UserError) the rows are safe.
std::string write_results(const ResultFolder& folder, const Spec& spec, Draw draw, const WrittenRows& rows,
                          const std::string& manifest);

}  // namespace kv
