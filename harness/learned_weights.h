#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "harness/run_options.h"
#include "harness/spec/grid.h"
#include "harness/spec/spec.h"
#include "kernels/backend.h"
#include "sim/learned/learned_file.h"
#include "sim/learned/learner.h"
#include "sim/model/model_identity.h"

namespace kv {

// The file of what a training learns (harness/train.h). Points of the axes have a file each, named after them; an axis
// of names of files has named it.
std::filesystem::path weights_path(const Learner& learner, const Case& policy_case, const ModelIdentity& identity,
                                   const RunOptions& options);

// The same for every way to write the path of a file.
std::filesystem::path one_spelling(const std::filesystem::path& path);

// What would be found out only after hours: weights that one training writes over another's, or over those that one
// begins with, or cannot write. UserError names the policy. Makes the folders that the files go to.
void check_weights(const Spec& spec, const Grid& grid, const RunOptions& options);

// LearnedFile::origin: origin_json's, the case's options of the key `learn` as they are given, its seed, and the
// SHA-256 of what it began with.
std::string origin_of_training(const Spec& spec, const Case& policy_case, uint64_t seed, const Facts& accelerator);

// What lies where weights go, beside what would be written there.
enum class WeightsThere : uint8_t {
  kNone,              // no weights: nothing, or a file that gives way
  kSame,              // these parameters of that model, learned in the same way
  kOfAnotherRun,      // others, learned in the same way
  kLearnedOtherwise,  // by other options, from another beginning, or in a way that the file does not say
};
WeightsThere weights_there(const std::filesystem::path& path, const LearnedFile& learned);

// Writes the file, unless it is the same: then it keeps its date, and with it the SHA-256 that results state.
void keep_learned(const std::filesystem::path& path, const LearnedFile& learned);

}  // namespace kv
