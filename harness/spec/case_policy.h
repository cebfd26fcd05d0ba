#pragma once

#include <memory>
#include <vector>

#include "harness/metrics/metric.h"
#include "harness/spec/case.h"
#include "harness/spec/spec.h"
#include "sim/policy/policy.h"

namespace kv {

// Options that name files are resolved as the spec's paths are.
Policy make_case_policy(const Spec& spec, const Case& policy_case);
// What reads a text as the case's policy does and never evicts: with its admission and selection alone.
Policy make_reader(const Spec& spec, const Case& policy_case);
Policy load_reader(const Spec& spec, const Case& policy_case);  // ready to run
// Cases of one spec of which this is the same have the same reader.
std::string reading_of(const Case& policy_case);
// Those of which this is the same have the same policy, every option that an axis sets included.
std::string deciding_of(const Case& policy_case);
// Ready to run. UserError where the file that its allocation reads is no longer the one that the grid was made with.
Policy load_case_policy(const Spec& spec, const Case& policy_case);
std::vector<std::unique_ptr<Metric>> make_case_metrics(const Spec& spec);

}  // namespace kv
