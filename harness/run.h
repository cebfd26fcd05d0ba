#pragma once

#include <string>

#include "harness/run_options.h"
#include "harness/spec/spec.h"

namespace kv {

// Runs an experiment: rows.csv, spec.yaml, manifest.json and the report in options.out. Every finished unit of work is
// safe on disk at once and stays there (harness/journal.h): a killed run goes on where it stopped and ends with the
// same rows, a complete one that is started again ends at once, and one whose spec was narrowed or widened computes
// only what is new. rows.csv holds what the spec asks for, no more; what it leaves out is kept for the next time. Units
// are of use to the code and the inputs that made them alone, but those of other code stay, too, so that going back to
// it costs nothing: only Start::kFresh discards, and <out>/units may be deleted at any time. Results of an earlier run
// stay as they are until all new ones replace them (harness/result_folder.h). The manifest's seconds are those of this
// run and of the units that earlier ones finished. A folder that another run writes to is refused. What the spec alone
// shows to be wrong, and a folder that cannot be written, throw UserError before anything runs; a case that throws
// UserError while it runs becomes a `skipped` row with the reason. A spec with the key `benchmarks` has nothing to run:
// its rows are those of its file of timings.
RunSummary run_experiment(const Spec& spec, const RunOptions& options);

// Everything that can be known without running: the grid, the device, the models' configurations, the files. UserError.
// Returns one line that says what would run.
std::string validate_experiment(const Spec& spec);

}  // namespace kv
