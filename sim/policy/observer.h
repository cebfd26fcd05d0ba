#pragma once

#include <cstdint>
#include <span>

#include "sim/policy/policy.h"

namespace kv {

struct ObserverNeeds {
  bool column_sums = false;
  bool column_max = false;
  BaselineNeeds baseline;
};

// One layer just before it is cut. Rows that are not due are not being cut.
struct EvictionView {
  const LayerView& layer;
  std::span<const uint8_t> sequences_due;  // [sequences]
  std::span<const int32_t> tokens_seen;    // [sequences]
  std::span<const int32_t> kept;           // [rows] entries that stay
  const uint8_t* keep = nullptr;           // [rows, pitch], backend memory, slots [0, length)
  const float* scores = nullptr;           // [rows, pitch]; protected slots may be unwritten
  int64_t pitch = 0;
  Protection protection;
};

// Watches a replay without touching it: metrics, the recorder, the baseline.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual ObserverNeeds observer_needs() const { return {}; }
  virtual void begin(const BatchShape&) {}
  virtual void attended(const LayerView&, ConstRef /*head_outputs [tokens, q_heads, head_dim]*/) {}
  virtual void evicting(const EvictionView&) {}
  virtual void block_done(const Block&, const TokenLosses&) {}
};

}  // namespace kv
