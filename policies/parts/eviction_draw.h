#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"
#include "sim/policy/params.h"
#include "sim/policy/scorer.h"

namespace kv {

// How scores become an eviction (001, App. B.2 and Table 5): of the d entries that leave, the network says how likely
// each is.
enum class EvictionSampling : uint8_t {
  kTop,          // the d worst
  kTop2d,        // d of the 2d worst, drawn without replacement with probability softmax(−y)
  kMultinomial,  // the same among all candidates
};

EvictionSampling read_eviction_sampling(Params& params);

// Draws evictions: scores by which the d lowest are the draw (kernels/draw_order.h), which depends on seed, sample,
// layer, head and tokens seen alone. Where 2d exceeds the candidates, all of them are; where no entry has to leave,
// none is. d is counted from a head's entries to the budget's mean: an allocation that gives heads unequal counts moves
// the cut, not the draw. Entries that were no candidates stay in the order of their scores.
class EvictionDraw {
 public:
  explicit EvictionDraw(EvictionSampling sampling) : sampling_(sampling) {}

  bool is_drawn() const { return sampling_ != EvictionSampling::kTop; }
  // Of every layer, or of the last alone, the candidates are kept until its next event.
  void begin(const BatchShape& shape, bool every_layer);
  // From out.ties, the network's scores, to out.scores, for slots [0, length − interval) of the rows that are due. What
  // is not finite stays so.
  void draw(const LayerView& view, const ScoreOutput& out);
  // [rows, pitch] at the layer's last event: 1 = was no candidate; null: all were.
  Slots<const uint8_t> stays(int layer) const { return stays_[index(layer)]; }

 private:
  size_t index(int layer) const { return keep_.size() == 1 ? 0 : static_cast<size_t>(layer); }
  void choose_candidates(const LayerView& view, const ScoreOutput& out);

  EvictionSampling sampling_;
  int budget_ = 0, interval_ = 0;
  uint64_t seed_ = 0;
  std::vector<int> layer_numbers_;
  Tensor numbers_;                           // [sequences], of their samples
  Tensor counts_;                            // [rows]
  std::vector<int32_t> counts_uploaded_;     // what they are; empty: nothing yet
  std::vector<Tensor> keep_;                 // [layers], or one for all, of [rows, pitch]
  std::vector<Slots<const uint8_t>> stays_;  // of them
};

}  // namespace kv
