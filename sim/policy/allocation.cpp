#include "sim/policy/allocation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/error.h"

namespace kv {

namespace {

std::map<std::string, AllocationEntry, std::less<>>& registry() {
  static std::map<std::string, AllocationEntry, std::less<>> map;
  return map;
}

const AllocationEntry& find_allocation(std::string_view name) {
  const auto found = registry().find(name);
  if (found != registry().end()) return found->second;
  std::string known;
  for (const auto& [other, entry] : registry()) known += (known.empty() ? "" : ", ") + other;
  throw UserError(fmt::format("unknown allocation '{}' (expected one of: {})", name, known));
}

}  // namespace

int32_t AllocateArgs::longest(int sequence) const {
  int32_t longest = 0;
  for (const ScoredLayer& layer : layers) {
    const auto own = layer.lengths.subspan(static_cast<size_t>(sequence * kv_heads), static_cast<size_t>(kv_heads));
    longest = std::max(longest, *std::max_element(own.begin(), own.end()));
  }
  return longest;
}

RegisterAllocation::RegisterAllocation(AllocationEntry entry) {
  const std::string name = entry.name;
  KV_CHECK(registry().emplace(name, std::move(entry)).second);
}

std::vector<const AllocationEntry*> allocations() {
  std::vector<const AllocationEntry*> all;
  for (const auto& [name, entry] : registry()) all.push_back(&entry);
  return all;
}

std::unique_ptr<Allocation> make_allocation(std::string_view name, std::vector<GivenParam> options) {
  const AllocationEntry& entry = find_allocation(name);
  Params params(entry.name, std::move(options));
  std::unique_ptr<Allocation> made = entry.make(params);
  params.finish();
  return made;
}

std::vector<DeclaredParam> describe_allocation(std::string_view name) {
  const AllocationEntry& entry = find_allocation(name);
  Params params(entry.name);
  entry.make(params);
  return params.declared();
}

void prepare(Allocation& allocation, const ModelIdentity& model, std::string_view scorer) {
  if (const auto file = allocation.check(model, scorer)) allocation.load(*file);
}

void require_meaning(const Allocation& allocation, std::string_view name) {
  const std::string_view option = allocation.cost_only_option();
  if (option.empty()) return;
  throw UserError(fmt::format(
      "{}: with '{}' only time and memory mean anything, and only a spec with 'protocol: latency' measures those", name,
      option));
}

}  // namespace kv
