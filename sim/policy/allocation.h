#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/paged.h"
#include "kernels/slots.h"
#include "sim/policy/protection.h"
#include "sim/policy/registry.h"
#include "sim/policy/slot.h"

namespace kv {

struct Capacity;
struct Measured;

// One layer after all layers were scored. Row = sequence · kv_heads + head.
struct ScoredLayer {
  PagedView cache;
  std::span<const int32_t> lengths;  // [rows], host
  Slots<const float> scores;         // protected slots may be unwritten
  Slots<const float> ties;           // null where the scorer has none
};

// An event of the sequences that keep equally many entries a head.
struct AllocateArgs {
  Backend& backend;
  int sequences = 0;
  int kv_heads = 0;
  int kept = 0;  // entries a (layer, KV head) keeps, on average, rounded down
  Protection protection;
  std::span<const uint8_t> sequences_due;  // [sequences]
  const uint8_t* rows_due = nullptr;       // [rows], the same in backend memory
  std::span<const int32_t> tokens_seen;    // [sequences]
  std::span<const int64_t> totals;         // [sequences] entries that a due one keeps over all layers and heads
  const Capacity* capacity = nullptr;      // that was passed, where the totals are what it leaves; else null
  std::span<const ScoredLayer> layers;
  std::span<const Slots<uint8_t>> keep;  // [layers], to be written by those that decides_entries(); else empty

  int rows() const { return sequences * kv_heads; }
  int64_t heads() const { return kv_heads * std::ssize(layers); }
  // Whatever the allocation: budgets are equal totals, or bounds of them (Allocation::keeps_total).
  int64_t total(int sequence) const { return totals[static_cast<size_t>(sequence)]; }
  bool is_due(int sequence) const { return sequences_due[static_cast<size_t>(sequence)] != 0; }
  int32_t longest(int sequence) const;  // entries of its longest head
};

// Divides a budget over layers and KV heads. Which entries of a head stay is still the scorer's order; a head whose
// count is below the protected set loses its oldest recent entries first, then its newer sinks (kernels/select_top.h).
class Allocation : public Slot {
 public:
  static constexpr std::string_view kKind = "allocation";
  // The option that makes what it leaves in a cache mean nothing, so that only time and memory may be measured with it;
  // empty: none does.
  virtual std::string_view cost_only_option() const { return {}; }
  // Whether every head keeps what the scorer protects in it, as long as the mean budget has room for that.
  virtual bool keeps_protected() const { return false; }
  // Entries that one head keeps at most of an event that leaves `kept` a head on average, of all that it may have.
  virtual int64_t most_kept(int64_t kept, int layers, int kv_heads) const { return kept * layers * kv_heads; }
  // Whether budgets are all that it goes by. Else it may leave fewer than the total, so that an event of a budget is
  // due whether or not the budget was exceeded.
  virtual bool keeps_total() const { return true; }
  // Whether it says not only how many entries a head keeps but which: then args.keep is what stays, else the scorer's
  // best of each head are.
  virtual bool decides_entries() const { return false; }
  // Writes counts [layers, rows], host memory, of the due sequences: 0 to the head's length each, their sum over a
  // sequence is its total(), or at most that where not keeps_total(). One that decides_entries() also writes args.keep,
  // 1 = stays, for all slots below a due row's length: as many ones as it counts. The loop checks all of it.
  virtual void allocate(const AllocateArgs& args, std::span<int32_t> counts) = 0;
  // Rows (harness/metrics/metric.h) on how it came to the counts since begin(), where that is not the same every time.
  virtual void report(std::vector<Measured>&) const {}
};

using AllocationEntry = PartEntry<Allocation>;
using RegisterAllocation = RegisterPart<Allocation>;

// Sorted by name.
std::vector<const AllocationEntry*> allocations();

// As make_part and describe_part (sim/policy/registry.h).
std::unique_ptr<Allocation> make_allocation(std::string_view name, std::vector<GivenParam> options);
std::vector<DeclaredParam> describe_allocation(std::string_view name);

// For whoever looks at more than time and memory: UserError for an allocation with a cost_only_option().
void require_meaning(const Allocation& allocation, std::string_view name);

}  // namespace kv
