#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/rate_entries.h"
#include "kernels/tensor.h"
#include "policies/parts/eviction_draw.h"
#include "policies/parts/late_attention.h"
#include "policies/parts/marked_sequences.h"
#include "sim/learned/learned_file.h"
#include "sim/learned/learner.h"
#include "sim/policy/params.h"
#include "sim/policy/scorer.h"

namespace kv {

// What shapes ForesightKV's network; files that say another thing are refused.
struct ForesightShape {
  // Of each query head. Paper: sums over the newest 8, 16, 32 queries, over the interval's, over all, decayed. Code:
  // largest, smallest, sum over the interval's four times, over all, decayed, as the released training computes them.
  enum class Features : uint8_t { kPaper, kCode };
  Features features = Features::kPaper;
  bool reads_entry = true;  // x begins with key and value
  int hidden = 16;
  // The sums over an interval's queries are computed at the event from these, not kept by the attention of every block:
  // the same numbers at another cost, so files know nothing of it. The code's features are always.
  bool recomputes_sums = true;

  bool recomputes() const { return recomputes_sums || features == Features::kCode; }
  static ForesightShape read(Params& params);
  std::map<std::string, std::string> settings() const;
  EntryNetwork network(const SourceInfo& info) const;
  std::vector<LearnedPart> parts(const SourceInfo& info) const;
  LearnedDemand demand() const;
};

// ForesightKV's features and network (001, App. B.1), which its policy decides by and its training learns. Entry
// columns hold what was attended before the last event, in all and decayed (8 bytes a query head); kept sums add what
// was since, in all and by the interval's last 8, 16 and 32 queries (16 bytes more). Those know from a query's place
// which event it is near, so events come after every interval. Recomputed sums need the interval's queries and their
// softmax sums instead. y = −φ of the paper: high stays. What leaves is drawn (EvictionDraw); y itself are the ties.
class ForesightScorer : public Scorer {
 public:
  static constexpr int kWindow = 32;

  explicit ForesightScorer(const ForesightShape& shape, EvictionSampling sampling = EvictionSampling::kTop)
      : shape_(shape), draw_(sampling) {}

  const ForesightShape& shape() const { return shape_; }
  // Parameters for models of that shape, from the next begin() on.
  void use(const SourceInfo& info, std::span<const float> parameters);
  // Keeps the features of every layer until its next event, not of the layer that was scored last alone.
  void keep_features() { keeps_features_ = true; }
  // The layer's network with the features of its last event.
  EntryNetwork network(int layer) const;
  const EvictionDraw& eviction_draw() const { return draw_; }

  Needs needs() const override;
  bool has_ties() const override { return draw_.is_drawn(); }
  Protection protects(int kept, int interval) const override;
  bool takes_prompts() const override { return false; }
  void check_budget(int kept, int interval) const override;
  void begin(const BatchShape& shape) override;
  size_t learned_bytes(const SourceInfo& info, DType activations) const override;
  void observe(const LayerView& view) override;
  bool reads_column_sums() const override { return !shape_.recomputes() || unpruned_.any(); }
  void score(const LayerView& view, const ScoreOutput& out) override;

 private:
  // Writes the features of the interval's queries, recomputed.
  void sum_attention(const LayerView& view, const ScoreOutput& out, Slots<float> features) const;
  // Writes those of columns, into which the interval's go.
  void fold(const LayerView& view, const ScoreOutput& out, Slots<float> features);
  const uint8_t* rows_counted(const LayerView& view, const ScoreOutput& out);

  ForesightShape shape_;
  EvictionDraw draw_;
  EntryNetwork network_;           // without features and parameters
  std::vector<float> parameters_;  // [layers, kv_heads, elements]
  Tensor on_device_;               // the same
  int kv_heads_ = 0, group_ = 1;
  int interval_ = 0;
  Suffixes suffixes_;
  Tensor queries_summed_;  // [sequences, suffixes and the interval]: queries that are summed again, where recomputed
  LateAttention late_;
  bool keeps_features_ = false;
  MarkedSequences unpruned_;      // until its first event all that a sequence attends is summed; used where recomputed
  Tensor counted_;                // [rows]
  std::vector<Tensor> features_;  // [layers], or one for all, of [rows · features, pitch]
  std::vector<Slots<const float>> views_;
};

}  // namespace kv
