#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "harness/spec/spec.h"
#include "sim/policy/params.h"

namespace kv {

// The task whose texts a model wrote itself. Nothing draws them: `kvlab write` lets the model write them into a file,
// which specs then read.
inline constexpr std::string_view kOwnTask = "own";
inline constexpr std::string_view kOwnSummary = "what the model wrote itself (kvlab write), from a file of prompts";

// Options of an entry `task: own` of the data.
struct OwnOptions {
  Located prompts;  // JSON lines; empty where `traces` says where the texts are
  Located traces;   // empty: beside the model
  double temperature = 0;
  double top_p = 0;
  int seed = 0;
  int turns = 0;
  double repetition = 0;
  bool stored_template = true;  // false: prompts are taken as they are
  bool any_writer = false;      // another model's traces will do
};

// UserError with the option's place where its value means nothing, and where there are neither prompts nor traces.
OwnOptions parse_own_options(const DataSpec& data);

std::vector<DeclaredParam> describe_own();

}  // namespace kv
