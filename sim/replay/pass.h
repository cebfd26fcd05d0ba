#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "sim/cache/cache.h"
#include "sim/policy/observer.h"
#include "sim/policy/policy.h"
#include "sim/replay/due.h"
#include "sim/replay/phase_timer.h"
#include "sim/replay/ranker.h"
#include "sim/source/source.h"

namespace kv {

struct PassArgs {
  Backend& backend;
  Source& source;
  Policy& policy;                      // says what is admitted and read; its scorer, if any, is the first ranker
  std::span<Policy* const> onlookers;  // their scorers are the next ones; they change nothing
  std::span<Observer* const> observers;
  bool count_pairs = true;  // that queries see, where the host cannot know; an op in every layer of a block
  int sequences = 0;
  int interval = 0;         // as in BatchShape
  bool time_phases = true;  // attention, observation and scoring
};

// Blocks of tokens on their way through the layers of a source, over one cache. What drives it (sim/replay/loop.h) says
// which tokens come next and when rankers score; cutting the cache is not its business.
class Pass {
 public:
  explicit Pass(const PassArgs& args);

  // Takes the next counts[s] tokens of every sequence as a block, and room for `steps` blocks like it. Selections speak
  // where it decodes (Step::decodes).
  void start(std::span<const int32_t> counts, int steps = 1, bool decodes = false);
  // The block through every layer.
  void run(TokenLosses& losses);
  // Every ranker scores the entries of the rows that are due.
  void score();
  // Sweeps away what has expired by the block's end; ops alone where nobody observes. The cache is to settle() before
  // the host knows it.
  void sweep(std::span<const uint8_t> sequences);
  // In place of start() and run(), where there is room left: the block after this one, with equally many tokens. On the
  // host: the tokens and entries that it brings. On the backend: nothing but ops, which may be recorded.
  void note_next();
  void run_next();
  // A recording of run_next(), where is_recordable(). Until the next start() views show the segments of this moment, as
  // a GPU's recording does: what decides by them on the host goes wrong on every backend, where tests find it.
  std::unique_ptr<Recording> record_next();
  // One layer's part of the block before attention: keys and values into the cache, queries into the windows. What the
  // admission says of them waits for the last layer in a step of generation.
  void take_up(int layer, const Projections& projections);
  // Whether blocks need nothing of the host while they run.
  bool is_recordable() const;

  // Goes on from there.
  void resume(Cache cache, std::vector<int32_t> done);
  // Adds the phases since the last call to their sums; waits for the device where there are any.
  void settle() { timer_.settle(); }

  Cache& cache() { return cache_; }
  const Cache& cache() const { return cache_; }
  const Block& block() const { return block_; }
  std::span<const int32_t> done() const { return done_; }  // [sequences] tokens taken so far
  // [sequences] of all their queries, layers and KV heads, the entries that they saw; empty where these are all that
  // there are, and lengths say it.
  std::vector<int64_t> seen_pairs() const;
  Due& due() { return due_; }
  std::span<const Ranker> rankers() const { return rankers_; }
  double attention_seconds() const { return attention_seconds_; }
  double admission_seconds() const { return admission_seconds_; }
  double observe_seconds(size_t ranker) const { return observe_seconds_.at(ranker); }
  double score_seconds(size_t ranker) const { return score_seconds_.at(ranker); }

 private:
  void run_layer(int layer);
  bool may_wait_for_admission() const;
  bool admits() const { return args_.policy.admission->window() > 0; }
  const int32_t* admit(const LayerView& view);
  LayerView view_of(int layer, const Projections& projections);
  void attend(LayerView& view);
  void observe(const LayerView& view);
  void count_pairs(int layer, const PagedView& read);
  Slots<float> column_buffer(Tensor& tensor, bool wanted, const LayerView& view);
  bool wants_log_sums() const;

  const PassArgs args_;
  const SourceInfo& info_;
  std::vector<Ranker> rankers_;
  Cache cache_;
  Block block_;
  std::vector<int32_t> done_;
  std::vector<Segment> recorded_segments_;  // empty where nothing is recorded
  Due due_;
  bool column_sums_observed_ = false, column_sums_wanted_ = false;
  bool column_max_wanted_ = false;
  Tensor column_sums_, column_max_, log_sums_, outputs_;
  Tensor expires_;           // of a layer's block, or of all layers'
  Projections first_layer_;  // of the block
  Tensor seen_pairs_;        // [2, layers, rows · group] i64, by KV head and by query head; none where all is seen
  bool decodes_ = false;
  // Whether the admission is asked about the block once all layers have run: where no token expires within the block
  // and nobody looks on in between, a step of generation asks for all layers at once, which takes hardly longer than
  // one.
  bool waits_for_admission_ = false;
  PhaseTimer timer_;
  double attention_seconds_ = 0, admission_seconds_ = 0;
  std::vector<double> observe_seconds_, score_seconds_;  // [rankers]
};

}  // namespace kv
