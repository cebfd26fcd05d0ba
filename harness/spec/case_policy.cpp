#include "harness/spec/case_policy.h"

#include "harness/spec/places.h"

namespace kv {

Policy make_case_policy(const Spec& spec, const Case& policy_case) {
  const Component& component = spec.policies[static_cast<size_t>(policy_case.policy)];
  SlotChoice allocation = policy_case.allocation;
  for (const DeclaredParam& declared : describe_allocation(allocation.name)) {
    if (declared.type != "file") continue;
    for (GivenParam& option : allocation.options) {
      if (option.key == declared.key) option.text = resolve_path(spec, {option.text, option.where}).string();
    }
  }
  return at(component.where, [&] { return make_policy(component.name, policy_case.options, std::move(allocation)); });
}

Policy load_case_policy(const Spec& spec, const Case& policy_case) {
  Policy policy = make_case_policy(spec, policy_case);
  policy.load(policy_case.files);
  return policy;
}

std::vector<std::unique_ptr<Metric>> make_case_metrics(const Spec& spec) {
  std::vector<std::unique_ptr<Metric>> all;
  for (const Component& component : spec.metrics) {
    all.push_back(at(component.where, [&] { return make_metric(component.name, component.options); }));
  }
  return all;
}

}  // namespace kv
