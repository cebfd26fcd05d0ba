#pragma once

#include <cstdint>
#include <vector>

#include "harness/spec/case.h"
#include "harness/spec/spec.h"
#include "sim/model/model_identity.h"
#include "sim/policy/baseline.h"

namespace kv {

// All that an experiment runs, in the order of its rows: model, data, data axes, then points of the axes (the first
// axis slowest) and, within each, policies in the order of the spec. Policies without a scorer run at every point, too.
struct Grid {
  std::vector<ModelIdentity> models;  // of the spec; one for traces
  std::vector<Workload> workloads;
  BaselineNeeds needs;  // of all policies and metrics together, so that a case's numbers do not depend on the others'
};

// Whether what policies have learned has to be there; whoever only counts cases leaves it unread.
enum class Learned : uint8_t { kRead, kUnread };

// Throws UserError for everything that the spec alone shows to be wrong: unknown policies, metrics, tasks, options and
// axes, missing or excess axes of the protocol, budgets that a policy cannot keep.
Grid make_grid(const Spec& spec, Learned learned = Learned::kRead);

}  // namespace kv
