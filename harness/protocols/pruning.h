#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "harness/protocols/protocol.h"
#include "harness/spec/case_check.h"
#include "sim/policy/capacity.h"
#include "sim/replay/schedule.h"

namespace kv {

// When a text is pruned while it grows: every `interval` tokens to a budget (001), or whenever a cache is fuller than
// its capacity (sim/policy/capacity.h; 004, Appendix K).
struct Pruning {
  int budget = 0;  // both as BatchShape has them; of a capacity what it comes to
  int interval = 0;
  std::optional<Capacity> capacity{};
};

// The axes that say so: budget and interval, or capacity and drop.
std::vector<ProtocolAxis> pruning_axes();

// Whether one of them is set.
bool is_pruned(const Case& unit_case);

// Of a policy with a scorer, where they are. A capacity's window is the admission's; without one it is that of the
// queries by which the scorer judges, whose entries stay. The interval of a budget is the one that the policy really
// runs at.
Pruning pruning_of(const Case& unit_case, const Policy& policy);

// UserError where one is missing, or where the policy, its slots or the spec's metrics cannot do with them.
void check_pruning(const CaseCheck& check);

// Steps of texts, after which `more` tokens come or none.
enum class Follows : uint8_t { kNothing, kMore };
Schedule schedule_of(const Pruning& pruning, std::span<const int32_t> lengths, Follows follows, int prefill_chunk);

}  // namespace kv
