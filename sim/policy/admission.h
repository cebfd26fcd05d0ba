#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/policy/layer_view.h"
#include "sim/policy/registry.h"
#include "sim/policy/slot.h"

namespace kv {

// Of a sequence whose newest query sees so many entries.
struct SeenEntries {
  int64_t total = 0;    // over all heads
  int64_t longest = 0;  // of one head

  static SeenEntries alike(int64_t entries, int64_t heads) { return {entries * heads, entries}; }
};

// Decides, as tokens come, for how long their entries are seen.
class Admission : public Slot {
 public:
  static constexpr std::string_view kKind = "admission";
  // Everybody sees an entry for so many tokens, its own included, whatever admit() says; 0: entries never expire, and
  // admit() is not asked.
  virtual int window() const { return 0; }
  // Before the block's keys and values are appended: writes [tokens, kv_heads], the position from which on queries no
  // longer see the entry (kernels/expiry.h): position + window() or kNeverExpires. Of a step of generation, no token of
  // which expires within it, it may be asked for all layers once the last one is through: view.layers of them,
  // [layers, tokens, kv_heads]. A pure function of a token's layer, position, keys and sample, not of how tokens lie in
  // blocks. Ops alone, since a step of generation may be recorded: what the host knows goes up in begin(), or needs()
  // asks for host_steps, and is asked layer by layer.
  virtual void admit(const LayerView&, int32_t* /*expires*/) {}
  // What is known before they come of the entries that are seen after so many tokens, none evicted, in all KV heads of
  // all layers: no fewer, and no more. No run is refused for more than the first, and memory is planned by the second.
  virtual SeenEntries least_seen(int64_t tokens, int64_t heads) const { return SeenEntries::alike(tokens, heads); }
  virtual SeenEntries most_seen(int64_t tokens, int64_t heads) const { return SeenEntries::alike(tokens, heads); }
};

using AdmissionEntry = PartEntry<Admission>;
using RegisterAdmission = RegisterPart<Admission>;

// Sorted by name.
std::vector<const AdmissionEntry*> admissions();
std::vector<DeclaredParam> describe_admission(std::string_view name);

}  // namespace kv
