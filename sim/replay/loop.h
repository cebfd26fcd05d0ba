#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sim/cache/cache.h"
#include "sim/policy/observer.h"
#include "sim/policy/policy.h"
#include "sim/replay/due.h"
#include "sim/replay/ranker.h"
#include "sim/replay/replay.h"
#include "sim/replay/schedule.h"
#include "sim/replay/stopwatch.h"
#include "sim/source/source.h"

namespace kv {

struct LoopArgs {
  Backend& backend;
  Source& source;
  std::span<Policy* const> policies;  // one, which cuts; or any number that only rank the same pass
  int sequences = 0;
  int budget = 0;  // as in ReplayArgs
  int interval = 0;
  uint64_t seed = 0;
  std::span<const int32_t> sample_numbers;
  const Baseline* baseline = nullptr;
  std::span<Observer* const> observers;
  bool only_ranks = false;  // nothing is cut, so allocations are not begun
  bool time_phases = true;  // attention and observation; each then waits for the device twice a layer
};

// What a loop leaves for others to go on from.
struct LoopState {
  Cache cache;
  std::vector<int32_t> done;    // [sequences] tokens processed
  std::vector<int64_t> events;  // [sequences] cuts so far
};

// The one loop, which replay() drives by a schedule, generate() token by token and Prefill over contexts: project,
// append, attend, observe, absorb; at an event score every layer, then cut (sim/replay/cut.h).
// Calls: begin or resume, then steps and decodes, then finish.
class Loop {
 public:
  // Throws UserError when the source lacks what the policy needs.
  explicit Loop(const LoopArgs& args);
  ~Loop();

  // Calls begin of source, scorer and observers. That many pages, of all layers and KV heads, are taken at once; more
  // as entries come.
  void begin(std::span<const std::span<const int32_t>> sequences, int64_t pages = 0);
  // In place of begin: goes on from there, with sequences that begin with the tokens done.
  void resume(std::span<const std::span<const int32_t>> sequences, LoopState state);
  void step(const Step& step);
  // A step after which every policy has ranked the entries of each sequence that had tokens in it; nothing is cut.
  void rank(std::span<const int32_t> counts);
  const Ranker& ranker(size_t policy) const { return rankers_.at(policy); }
  // In place of the steps that process the first `entries` tokens: every head of every sequence gets that many entries
  // of random keys and values, and every window of queries random ones. No scorer observes them.
  void fill(int32_t entries);

  // Up to `steps` steps without an event, of one token for each active sequence (active[s] = 1, else 0). Pages are
  // taken for all of them; the first runs eagerly, the rest from a recording, where nobody wants to see each step and
  // there are enough of them to repay it. After every `pause_every` of them, and at the end, `pause` is told how many
  // were made since and whether from a recording; false ends the run. The source must find its ids on the backend:
  // nothing is uploaded between steps.
  using Pause = std::function<bool(int steps, bool recorded)>;
  void decode(std::span<const int32_t> active, int steps, int pause_every, const Pause& pause);

  ReplayResult finish();

  std::span<const int32_t> tokens_done() const { return done_; }  // [sequences]
  const Cache& cache() const { return cache_; }
  double score_seconds(size_t ranker) const { return score_seconds_.at(ranker); }
  double eviction_seconds() const { return score_seconds() + result_.evict_seconds; }

 private:
  double score_seconds() const;  // of all scorers
  int sequences() const { return args_.sequences; }
  BatchShape batch_shape();
  void start_block(std::span<const int32_t> counts, int steps);
  void run_block(TokenLosses& losses);
  void count();
  void tell(const TokenLosses& losses);
  void note_next();
  void run_next();
  bool is_recordable() const;
  void mark_due(const Step& step);
  float* column_buffer(Tensor& tensor, bool wanted, const LayerView& view);
  void run_layer(int layer);
  void cut(const Step& step);
  void count_pairs();
  void note_peak();
  template <class Visit>
  void for_each_length(int sequence, Visit visit) const;
  void measure_kept(int sequence);

  const LoopArgs args_;
  const SourceInfo& info_;
  std::vector<Ranker> rankers_;  // one a policy with a scorer
  Cache cache_;
  Stopwatch watch_;
  std::vector<double> score_seconds_;  // [rankers]
  ReplayResult result_;
  Block block_;
  std::vector<int32_t> done_;  // tokens processed, per sequence
  std::vector<int32_t> numbers_;
  bool column_sums_wanted_ = false;
  bool column_max_wanted_ = false;
  Tensor column_sums_, column_max_, outputs_;
  Due due_;
};

}  // namespace kv
