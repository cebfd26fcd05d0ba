#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/slots.h"
#include "sim/policy/layer_view.h"
#include "sim/policy/protection.h"
#include "sim/policy/registry.h"
#include "sim/policy/slot.h"

namespace kv {

// Where scores go. Slots of protected entries and rows that are not due need not be written.
struct ScoreOutput {
  Slots<float> scores;                          // higher stays
  Slots<float> ties;                            // second key; null unless has_ties()
  const uint8_t* rows_due = nullptr;            // [rows], backend memory
  std::span<const uint8_t> sequences_due;       // [sequences], host
  std::span<const int32_t> tokens_seen;         // [sequences], host: tokens processed so far
  const int32_t* device_tokens_seen = nullptr;  // [sequences]
};

// Ranks cache entries. One call covers every sequence and KV head of a layer; nothing per token reaches the host.
class Scorer : public Slot {
 public:
  static constexpr std::string_view kKind = "policy";  // a policy goes by its scorer's name
  virtual bool has_ties() const { return false; }
  // `kept` entries a row stay; interval as in BatchShape.
  virtual Protection protects(int kept, int interval) const = 0;
  // Throws UserError when the policy cannot keep `kept` entries at this interval (B <= L, B <= window, …).
  virtual void check_budget(int /*kept*/, int /*interval*/) const {}
  // Whether it ranks the entries of a prompt, too, that is compressed at once: interval 0.
  virtual bool takes_prompts() const { return true; }
  // Entries that a head must hold at every event, because as many of its newest queries judge the others.
  virtual int least_entries() const { return 0; }
  // Interval the policy really runs at (the original H2O prunes after every token).
  virtual int interval(int wanted) const { return wanted; }
  virtual void observe(const LayerView&) {}  // after every block's attention
  // Whether column sums of the next blocks are still read, of those that needs() asks for; once false, it stays so.
  virtual bool reads_column_sums() const { return needs().column_sums; }
  virtual void score(const LayerView&, const ScoreOutput&) = 0;
};

using PolicyEntry = PartEntry<Scorer>;  // `make` may return null: never evicts
using RegisterPolicy = RegisterPart<Scorer>;

}  // namespace kv
