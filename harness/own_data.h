#pragma once

#include <filesystem>
#include <string>

#include "harness/spec/spec.h"
#include "sim/model/model_identity.h"
#include "sim/model/tokenizer/tokenizer.h"
#include "sim/tasks/own_traces.h"

namespace kv {

// Where the traces of an entry `task: own` lie: where it says, else in the model's folder, own/<prompts>.jsonl.xz, the
// prompts' file without its endings.
std::filesystem::path own_traces_file(const Spec& spec, const DataSpec& data, const ModelIdentity& model);

// Reads them. UserError, one line: no such file, one that is not as own_traces.h has it, traces of another model (but
// where the entry takes any writer's: then of another vocabulary), of other prompts, sampling, turns or bound than the
// entry says, or shorter than it asks for.
OwnTraces load_own_traces(const Spec& spec, const DataSpec& data, const ModelIdentity& model);

// SHA-256 of what every id stands for: texts in ids of equal vocabularies are the same texts.
std::string vocabulary_sha256(const Tokenizer& tokenizer);

}  // namespace kv
