#pragma once

#include <string>
#include <vector>

#include "harness/cli/verbs.h"
#include "harness/run_options.h"
#include "harness/spec/spec.h"

namespace kv {

// Runs one experiment and says what came of it; sets the exit code to 1 where a case failed, or nothing could run.
void run_spec(const Spec& spec, const RunOptions& options, Verbs& verbs);

enum class StaleAction { kSay, kRun };

// For each spec, says of each of its results (or of the one that it lacks) in the folder `results` whether it is fresh,
// or why not, and, unless that is all that is asked, runs those that are not, with the settings that their manifests
// name; where only title, tables, plots, paper or verdict are others, they are drawn again. What is wrong with one does
// not keep the others from being made: the exit code is then 2 for a mistake, else 1 where something stays out of date.
void refresh_results(const std::vector<std::string>& specs, const std::filesystem::path& results, StaleAction action,
                     Verbosity verbosity, Verbs& verbs);

}  // namespace kv
