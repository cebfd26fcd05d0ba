#pragma once

#include <cstdint>
#include <span>

#include "sim/policy/policy.h"

namespace kv {

struct ObserverNeeds {
  bool column_sums = false;
  bool column_max = false;
  BaselineNeeds baseline;
  // Knows of entries in the cache that have expired, which queries do not see, and that they may leave between events.
  bool takes_unseen = false;
  // Knows of pages that a selection lets no query read.
  bool takes_unread = false;
  // Does without knowing where events fall until they do: a capacity leaves that to the cache.
  bool takes_capacity = false;
};

// One layer just before it is cut. Rows that are not due are not being cut.
struct EvictionView {
  const LayerView& layer;
  std::span<const uint8_t> sequences_due;  // [sequences]
  std::span<const int32_t> tokens_seen;    // [sequences]
  std::span<const int32_t> kept;           // [rows] entries that stay
  Slots<const uint8_t> keep;               // 1 = stays; below each row's length
  Slots<const float> scores;               // protected slots may be unwritten
  Slots<const float> ties;                 // second keys; null where the scorer has none
  Protection protection;
  std::span<const ScoredLayer> onlookers;  // what each policy that looks on (ReplayArgs) says of this layer
};

// Watches a replay without touching it: metrics, the recorder, the baseline.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual ObserverNeeds observer_needs() const { return {}; }
  virtual void begin(const BatchShape&) {}
  virtual void attended(const LayerView&, ConstRef /*head_outputs [tokens, q_heads, head_dim]*/) {}
  virtual void evicting(const EvictionView&) {}
  // Entries that have expired are about to leave a layer, whatever the events: of every row, those with keep = 0.
  virtual void sweeping(const LayerView&, Slots<const uint8_t> /*keep*/) {}
  virtual void block_done(const Block&, const TokenLosses&) {}
};

}  // namespace kv
