#pragma once

#include <filesystem>

#include "harness/spec/spec.h"
#include "sim/model/model_config.h"
#include "sim/model/model_identity.h"

namespace kv {

// The configuration of a named shape, or of the model in that folder. Throws UserError.
ModelConfig config_of(const ModelChoice& choice, const std::filesystem::path& folder);

// The folder of a model that has files: a path of the spec, or OWNER/NAME in the local Hugging Face cache. UserError
// that says where it was looked for and how to get it.
std::filesystem::path find_folder(const Spec& spec, const ModelChoice& choice);

// Identifies the spec's model of that number, or its traces. A folder or trace that is missing is no error yet:
// whoever opens it says so.
ModelIdentity identity_of(const Spec& spec, int model);

}  // namespace kv
