#pragma once

#include <string>
#include <vector>

#include "harness/metrics/residents.h"
#include "sim/policy/observer.h"

namespace kv {

// What stays at every event of a replay, as JSON lines, one a KV head, in order of events, layers and heads:
//   {"event": 0, "tokens": 320, "layer": 0, "head": 0, "positions": [0, 1, 5, …]}
// event counts the sequence's events, tokens those that it had seen, positions ascend. Of a batch's first sequence.
class KeptPositions final : public Observer {
 public:
  void begin(const BatchShape& shape) override;
  void attended(const LayerView& view, ConstRef) override { residents_.append(view); }
  void evicting(const EvictionView& view) override;

  const std::string& lines() const { return lines_; }

 private:
  Residents residents_;
  std::vector<int> layer_numbers_;
  std::vector<int> events_;  // [layers] so far
  std::string lines_;
};

}  // namespace kv
