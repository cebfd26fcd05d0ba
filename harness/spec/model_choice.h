#pragma once

#include <filesystem>

#include "harness/spec/spec.h"
#include "sim/model/model_config.h"
#include "sim/model/model_identity.h"

namespace kv {

// The configuration of a named shape, or of the model in that folder. Throws UserError.
ModelConfig config_of(const ModelChoice& choice, const std::filesystem::path& folder);

// Of the spec's model of that number, or of its traces. A folder or trace that is missing is no error yet: whoever
// opens it says so.
ModelIdentity identity_of(const Spec& spec, int model);

}  // namespace kv
