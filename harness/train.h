#pragma once

#include "harness/run_options.h"
#include "harness/spec/spec.h"

namespace kv {

// Protocol train: for each model and policy of a spec, trains what the policy's slot learns (sim/learned/learner.h) on
// the texts of all data entries together, and writes it to <model folder>/learned/, or options.weights where that is
// given. Rows: what each step measured, x = step. Checkpoints in <out>/checkpoints follow every
// options.checkpoint_seconds: a killed training goes on there and, on the CPU, ends with the same rows and the same
// weights. Checkpoints of other code, machines, inputs or settings are left alone, by Start::kFresh, too. UserError: a
// model, text or loss that is of no use, or weights that are there and not this training's, but for Start::kFresh. All
// but losses are looked at before anything is removed or trained, and where training has begun, its last good
// checkpoint stays.
// Several ranks (options.ranks) learn from some of each step's texts each and add up what they make of the gradient:
// the parameters of all are the same at every step, those of another number of ranks but for rounding. The first one
// writes.
RunSummary train(const Spec& spec, const RunOptions& options);

}  // namespace kv
