#pragma once

#include <filesystem>

#include "harness/spec/spec.h"
#include "sim/model/model_config.h"
#include "sim/model/model_identity.h"

namespace kv {

// The configuration of a named shape, or of the model with those files. Throws UserError.
ModelConfig config_of(const ModelChoice& choice, const std::filesystem::path& files);

// The folder or GGUF file of a model that has files: a path of the spec, or OWNER/NAME in the local Hugging Face cache.
// UserError that says where it was looked for and how to get it.
std::filesystem::path find_model_files(const Spec& spec, const ModelChoice& choice);

// Identifies the spec's model of that number, or its traces. A model or trace that is missing is no error yet: whoever
// opens it says so.
ModelIdentity identity_of(const Spec& spec, int model);

}  // namespace kv
