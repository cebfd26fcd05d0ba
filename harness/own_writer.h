#pragma once

#include <filesystem>
#include <vector>

#include "harness/progress.h"
#include "harness/spec/spec.h"

namespace kv {

struct OwnWriterOptions {
  int batch = 0;       // texts that are written together; 0: 8 on the CPU, 64 on a GPU
  int attempts = 0;    // at most, of an entry and a model; 0: four a trace
  bool fresh = false;  // discards what was written before
  Verbosity verbosity = Verbosity::kNormal;
};

// The traces of one model and one entry `task: own` of the data.
struct OwnWritten {
  std::filesystem::path file;
  int traces = 0;
  int wanted = 0;
  int attempts = 0;
  int written_before = 0;  // attempts of an earlier start among them
};

// Lets every model of the spec write what its entries `task: own` ask for: `samples` traces of `tokens` tokens
// (sim/replay/turns.h), into the file that specs then read (harness/own_data.h). An attempt that ends early, or whose
// repetition rate exceeds the entry's bound, is noted and is no trace. The file holds attempts up to the last trace
// that was wanted, so it does not depend on the batch, but for rounding: on the CPU not at all.
// What is finished is kept after every batch in <file without .xz>.unfinished, from which a killed writer goes on; a
// file with too few traces is gone on from, too.
// Throws UserError: no such entry, random weights, a file of another recipe or code (but where `fresh`), what prompts
// or the model's template lack, no attempt that became a trace.
std::vector<OwnWritten> write_own_traces(const Spec& spec, const OwnWriterOptions& options);

}  // namespace kv
