#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/spec/spec.h"
#include "kernels/backend.h"

namespace kv {

// What a run was made of. Same manifest and same code give the same rows.csv but for timing rows.
struct ManifestInputs {
  // A file that an allocation read.
  struct Profile {
    std::string model;
    std::string file;  // without its folder
    std::string sha256;

    bool operator==(const Profile&) const = default;
  };
  const Spec* spec = nullptr;
  std::vector<std::string> overrides;                           // the --set texts
  std::vector<std::pair<std::string, std::string>> models;      // name, SHA-256 of its files
  std::vector<std::pair<std::string, std::string>> tokenizers;  // name, SHA-256 of tokenizer.json
  std::vector<Profile> profiles;
  std::map<std::string, std::string> prompts;  // by "model/data …": the SHA-256 of each sample's token ids, one by one
  std::map<std::string, int> batches;          // by the same names: samples that ran together
  Facts accelerator;                           // Backend::accelerator()
  std::string rows;                            // rows.csv, without its timing rows
  std::string benchmarks{};                    // of timings: what their file says of device and versions, a JSON object
  int cases = 0;
  // From the start of the command's work to its last case: checks, opening the device and loading models are part of
  // it, writing and drawing the report are not.
  double seconds = 0;
};

// JSON text, keys in a fixed order; `machine` begins with the facts of the accelerator, if any. Holds neither host
// names nor absolute paths; date and duration stand in it alone, never in a row.
std::string manifest_json(const ManifestInputs& inputs);

// The origin of a file that is being made, a budget profile (BudgetProfile::origin) or own traces (OwnTraces::origin):
// what a manifest says of code, spec, device, machine and time, in the same words, a JSON object on one line, keys in
// alphabetical order.
std::string origin_json(const Spec& spec, const Facts& accelerator);

// Identifies the code that computes rows: the commit where the tree was clean, else the hash of the program itself.
std::string code_identity();
// Compiler, flags and libraries of the build, and the host's processor, for which it may choose other instructions;
// `timed`: the number of threads, too, on which nothing but time depends.
std::string machine_identity(bool timed);

}  // namespace kv
