#pragma once

#include <chrono>

#include "harness/run_options.h"
#include "harness/spec/spec.h"

namespace kv {

// Runs all units of work of a spec that its protocol makes, and leaves rows, manifest and report in the result folder.
// `begin`: when the work began. harness/run.h says the rest; the spec is known to be sound.
RunSummary run_units(const Spec& spec, const RunOptions& options, std::chrono::steady_clock::time_point begin);

}  // namespace kv
