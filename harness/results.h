#pragma once

#include <span>
#include <string>

#include "harness/rows.h"
#include "harness/run.h"
#include "harness/spec/spec.h"

namespace kv {

// Rows, spec and manifest in the result folder, and unless that is for later the report of them, whose tables it
// returns.
std::string write_results(const Spec& spec, const RunOptions& options, std::span<const Row> rows,
                          const std::string& manifest);

}  // namespace kv
