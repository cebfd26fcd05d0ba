#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/metrics/metric.h"
#include "harness/spec/spec.h"
#include "sim/model/model_identity.h"
#include "sim/policy/baseline.h"
#include "sim/policy/policy.h"
#include "sim/tasks/task.h"

namespace kv {

// One policy at one point of the axes.
struct Case {
  int policy = 0;                     // index into Spec::policies
  std::vector<GivenParam> options{};  // of the policy, those that axes set included
  SlotChoice allocation{"uniform"};
  std::vector<InputFile> files{};   // that its policy was found to read when the grid was made
  std::vector<std::string> axes{};  // one a Spec::axis_columns(); empty where the axis does not apply
  int budget = 0;                   // decode protocol; 0 where no axis sets it
  int interval = 0;
  double keep = 0;           // one-shot and answer protocols
  bool query_aware = false;  // answer protocol
  // Protocol latency, which takes the axes above, too:
  int context = 0;     // tokens of the prompt; 0: none is timed
  int new_tokens = 0;  // of the generation whose time is worked out; 0: none is
  int batch = 1;       // 0: the largest that fits
};

// What shares full-cache passes: one model, one data entry, one point of the axes that change the data.
struct Workload {
  int model = 0;   // index into Spec::models; 0 for traces
  int data = -1;   // index into Spec::data; −1 for traces and under protocol latency
  int tokens = 0;  // 0: the whole file
  int samples = 1;
  TaskOptions options{};
  std::vector<Case> cases{};
};

// All that an experiment runs, in the order of its rows: model, data, data axes, then points of the axes (the first
// axis slowest) and, within each, policies in the order of the spec. Policies without a scorer run at every point, too.
struct Grid {
  std::vector<ModelIdentity> models;  // of the spec; one for traces
  std::vector<Workload> workloads;
  BaselineNeeds needs;  // of all policies and metrics together, so that a case's numbers do not depend on the others'
};

// Throws UserError for everything that the spec alone shows to be wrong: unknown policies, metrics, tasks, options and
// axes, missing or excess axes of the protocol, budgets that a policy cannot keep.
Grid make_grid(const Spec& spec);

// Options that name files are resolved as the spec's paths are.
Policy make_case_policy(const Spec& spec, const Case& one);
// Ready to run. UserError where a file that it reads is no longer the one that the grid was made with.
Policy load_case_policy(const Spec& spec, const Case& one);
std::vector<std::unique_ptr<Metric>> make_case_metrics(const Spec& spec);

// Options of a task, as a spec gives them; `declared` (may be null) receives their names, types and meaning.
TaskOptions parse_task_options(const Task& task, const std::vector<GivenParam>& options,
                               std::vector<DeclaredParam>* declared = nullptr);

}  // namespace kv
