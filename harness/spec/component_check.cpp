#include "harness/spec/component_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "harness/metrics/metric.h"
#include "harness/spec/component_reader.h"
#include "harness/spec/names.h"
#include "harness/spec/slot_kinds.h"
#include "kernels/error.h"
#include "sim/policy/policy.h"
#include "sim/policy/spelling.h"

namespace kv {

namespace {

bool declares(const std::vector<DeclaredParam>& declared, const std::string& key) {
  return std::any_of(declared.begin(), declared.end(), [&](const DeclaredParam& param) { return param.key == key; });
}

// The keys that stand in an entry beside its options: a misspelt one looks like an option.
std::vector<DeclaredParam> keys_beside_options(const std::string& kind) {
  std::vector<DeclaredParam> keys;
  for (const KeySection& section : component_keys(kind))
    keys.insert(keys.end(), section.keys.begin(), section.keys.end());
  std::erase_if(keys, [&](const DeclaredParam& key) { return key.key == kind; });
  return keys;
}

void check_options(const std::string& owner, const std::vector<GivenParam>& given,
                   const std::vector<DeclaredParam>& options, const std::vector<DeclaredParam>& keys = {}) {
  Params params(owner, given);
  params.declare(options);
  params.declare(keys);
  params.finish();
}

// An option that stands one level too high.
void refuse_options_of_slot(const Component& policy, const std::vector<DeclaredParam>& own, const SlotKind& kind) {
  const std::string& filling = (policy.slots.*kind.slot).name;
  const std::vector<DeclaredParam> options = kind.describe(filling);
  for (const GivenParam& given : policy.options) {
    if (declares(own, given.key) || !declares(options, given.key)) continue;
    Params(policy.name, policy.options)
        .fail(given.key, fmt::format("is an option of {0} {1}, expected {0}: {{{1}: {{{2}: {3}}}}}", kind.name, filling,
                                     given.key, given.text));
  }
}

}  // namespace

void check_name(const Located& name, std::string_view kind, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), name.text) != known.end()) return;
  throw UserError(fmt::format("{}: unknown {} '{}'{} (expected one of: {})", name.where, kind, shown(name.text),
                              did_you_mean(name.text, known), fmt::join(known, ", ")));
}

void check_policy_names(const Component& policy) {
  check_name({policy.name, policy.where}, "policy", names_of(policies()));
  const std::vector<DeclaredParam> options = describe_policy(policy.name);
  for (const SlotKind& kind : slot_kinds()) {
    const SlotChoice& slot = policy.slots.*kind.slot;
    check_name({slot.name, slot.where}, kind.name, kind.known());
    check_options(slot.name, slot.options, kind.describe(slot.name));
    refuse_options_of_slot(policy, options, kind);
  }
  check_options(policy.name, policy.options, options, keys_beside_options("policy"));
}

void check_metric_names(const Component& metric) {
  check_name({metric.name, metric.where}, "metric", names_of(metrics()));
  check_options(metric.name, metric.options, describe_metric(metric.name), keys_beside_options("metric"));
}

void check_labels(const std::vector<Component>& components, std::string_view kind) {
  std::set<std::string> labels;
  for (const Component& component : components) {
    if (labels.insert(component.label).second) continue;
    throw UserError(fmt::format("{}: {}: '{}' appears twice{}", component.where, kind, component.label,
                                kind == "policy" ? ", expected a label of its own for each" : ""));
  }
}

}  // namespace kv
