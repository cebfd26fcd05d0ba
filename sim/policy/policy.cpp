#include "sim/policy/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/error.h"

namespace kv {

namespace {

std::map<std::string, PolicyEntry, std::less<>>& registry() {
  static std::map<std::string, PolicyEntry, std::less<>> map;
  return map;
}

const PolicyEntry& find_policy(std::string_view name) {
  const auto found = registry().find(name);
  if (found != registry().end()) return found->second;
  std::string known;
  for (const auto& [other, entry] : registry()) known += (known.empty() ? "" : ", ") + other;
  throw UserError(fmt::format("unknown policy '{}' (expected one of: {})", name, known));
}

// "snapkv {window: 32}": the values that differ from their defaults, by key, so that neither the order of the options
// nor how a number is written matters.
std::string quoted(const std::string& name, std::vector<DeclaredParam> options) {
  std::erase_if(options, [](const DeclaredParam& option) { return option.value == option.fallback; });
  if (options.empty()) return name;
  std::sort(options.begin(), options.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  std::string list;
  for (const DeclaredParam& option : options) {
    list += fmt::format("{}{}: {}", list.empty() ? "" : ", ", option.key, option.value);
  }
  return fmt::format("{} {{{}}}", name, list);
}

}  // namespace

void Scorer::check(int, int) const {}

RegisterPolicy::RegisterPolicy(PolicyEntry entry) {
  const std::string name = entry.name;
  KV_CHECK(registry().emplace(name, std::move(entry)).second);
}

std::vector<const PolicyEntry*> policies() {
  std::vector<const PolicyEntry*> all;
  for (const auto& [name, entry] : registry()) all.push_back(&entry);
  return all;
}

Policy policy_of(const std::string& name, std::unique_ptr<Scorer> scorer) {
  const bool oracle = scorer && scorer->needs().future;
  return {.name = name,
          .scorer_name = name,
          .scorer = std::move(scorer),
          .allocation_name = "uniform",
          .allocation = make_allocation("uniform", {}),
          .oracle = oracle};
}

Policy make_policy(std::string_view name, std::vector<GivenParam> options, SlotChoice allocation) {
  const PolicyEntry& entry = find_policy(name);
  Policy policy{.name = entry.name, .scorer_name = ""};
  Params params(entry.name, std::move(options));
  policy.scorer = entry.make(params);
  params.finish();
  policy.scorer_name = quoted(entry.name, params.declared());
  policy.allocation_name = allocation.name;
  policy.allocation = make_allocation(allocation.name, std::move(allocation.options));
  if (!policy.scorer && policy.allocation_name != "uniform") {
    throw UserError(fmt::format("{}: never evicts, so there is nothing to allocate (allocation: {})", policy.name,
                                policy.allocation_name));
  }
  policy.oracle = (policy.scorer && policy.scorer->needs().future) || policy.allocation->needs_future();
  return policy;
}

void check_interval(const Policy& policy, int asked) {
  // Until the next event a head gets `interval` entries, and it may hold no others.
  const int interval = policy.scorer->interval(asked), window = policy.scorer->least_entries();
  if (interval >= window || policy.allocation->keeps_protected()) return;
  throw UserError(fmt::format(
      "{}: interval {} must be at least the window {} with allocation {}, which may leave a head fewer entries",
      policy.name, interval, window, policy.allocation_name));
}

int check_decode(const Policy& policy, int budget, int asked) {
  KV_CHECK(policy.scorer);
  const int interval = policy.scorer->interval(asked);
  if (budget <= interval) {
    throw UserError(fmt::format("{}: budget {} must exceed the interval {}", policy.name, budget, interval));
  }
  policy.scorer->check(budget, interval);
  check_interval(policy, asked);
  return interval;
}

std::vector<DeclaredParam> describe_policy(std::string_view name) {
  const PolicyEntry& entry = find_policy(name);
  Params params(entry.name);
  entry.make(params);
  return params.declared();
}

}  // namespace kv
