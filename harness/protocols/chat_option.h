#pragma once

#include "harness/spec/spec.h"
#include "sim/policy/params.h"

namespace kv {

// The option `template` of the spec's key `chat`: whether questions are asked in the model's stored chat template.
bool reads_chat(Params& params);
// The same of a spec; no where it lacks the key. UserError.
bool asks_for_chat(const Spec& spec);

}  // namespace kv
