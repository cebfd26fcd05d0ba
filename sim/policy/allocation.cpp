#include "sim/policy/allocation.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/error.h"

namespace kv {

int32_t AllocateArgs::longest(int sequence) const {
  int32_t longest = 0;
  for (const ScoredLayer& layer : layers) {
    const auto heads = layer.lengths.subspan(static_cast<size_t>(sequence * kv_heads), static_cast<size_t>(kv_heads));
    longest = std::max(longest, *std::max_element(heads.begin(), heads.end()));
  }
  return longest;
}

std::vector<const AllocationEntry*> allocations() { return registry_of<Allocation>().all(); }

std::unique_ptr<Allocation> make_allocation(std::string_view name, std::vector<GivenParam> options) {
  return make_part<Allocation>(name, std::move(options));
}

std::vector<DeclaredParam> describe_allocation(std::string_view name) { return describe_part<Allocation>(name); }

void require_meaning(const Allocation& allocation, std::string_view name) {
  const std::string_view option = allocation.cost_only_option();
  if (option.empty()) return;
  throw UserError(fmt::format(
      "{}: with '{}' only time and memory mean anything, and only a spec with 'protocol: latency' measures those", name,
      option));
}

}  // namespace kv
