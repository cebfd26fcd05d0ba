#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/input_hashes.h"
#include "harness/run_times.h"
#include "harness/spec/spec.h"
#include "kernels/backend.h"

namespace kv {

// Where a rank ran, of several that shared the work.
struct RankMachine {
  std::string machine{};  // machine_json()
  int node = 0;           // which of their machines: numbered as ranks come to one
  // From its start until it found nothing left to do; 0 where ranks always wait for each other.
  double busy_seconds = 0;
  bool is_lost = false;  // before there was nothing left to do
};

// What a run was made of. Same manifest and same code give the same rows.csv but for timing rows.
struct ManifestInputs {
  const Spec* spec = nullptr;
  std::vector<std::string> overrides;  // the --set texts
  InputHashes hashes;
  std::map<std::string, std::string> prompts;  // by "model/data …": the SHA-256 of each sample's token ids, one by one
  std::map<std::string, int> batches;          // by the same names: samples that ran together
  Facts accelerator;                           // Backend::accelerator()
  std::vector<RankMachine> ranks{};            // where several shared the work
  std::string rows;                            // rows.csv, without its timing rows
  std::string benchmarks{};                    // of timings: what their file says of device and versions, a JSON object
  std::string benchmarks_sha256{};             // of that file
  int cases = 0;
  // From the start of the command's work to its last case: checks, opening the device and loading models are part of
  // it, writing and drawing the report are not.
  double seconds = 0;
  RunTimes times{};  // of a run's units
};

// JSON text, keys in a fixed order; `machine` begins with the facts of the accelerator, if any. Holds neither host
// names nor absolute paths; date and duration stand in it alone, never in a row.
std::string manifest_json(const ManifestInputs& inputs);

// The machine that runs this, beginning with the facts of the accelerator, if any: a JSON object on one line.
std::string machine_json(const Facts& accelerator);

// The origin of a file that is being made, a budget profile (BudgetProfile::origin) or own traces (OwnTraces::origin):
// what a manifest says of code, spec, device, machine and time, in the same words, a JSON object on one line, keys in
// alphabetical order. `more`: objects beside these, by name.
std::string origin_json(const Spec& spec, const Facts& accelerator, const std::map<std::string, Facts>& more = {});

// Identifies the sources that rows on that device depend on, whatever built them (BuildInfo::cpu_sources, ::sources).
std::string_view row_sources(const std::string& device);

// Identifies the code that computes rows: the commit where the tree was clean, else the hash of the program itself.
std::string code_identity();
// Compiler, flags and libraries of the build, and the host's processor, for which it may choose other instructions;
// `timed`: the number of threads, too, on which nothing but time depends.
std::string machine_identity(bool timed);

}  // namespace kv
