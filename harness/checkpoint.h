#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/learned/training.h"

namespace kv {

// A training that is under way, as it goes on after a kill: its state, and what its steps have measured.
struct Checkpoint {
  Training::State state;
  std::vector<std::string> metrics;
  std::vector<std::vector<double>> values;  // [steps done][metrics]
  double seconds = 0;                       // that it has taken
  std::string weights;                      // the file that it was let to write, spelled by one_spelling(),
  std::string replaced;                     // and the SHA-256 of what lay there; empty: nothing did
  bool has_written = false;                 // all steps are done, and what was learned is there
};

// Replaces the file as a whole: there is the old one or the new one, never a part.
void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

// None where there is no such file. UserError, naming the file and what to do, where it is not as write_checkpoint
// writes it.
std::optional<Checkpoint> read_checkpoint(const std::filesystem::path& path);

// The UserError for a checkpoint that is of no use: what is wrong with which file, then what to do.
[[noreturn]] void refuse_checkpoint(const std::string& what);

// Removes what a killed write left in the folder of checkpoints, which must be this process's own.
void sweep_checkpoints(const std::filesystem::path& folder);

}  // namespace kv
