#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sim/cache/cache.h"
#include "sim/policy/observer.h"
#include "sim/policy/policy.h"
#include "sim/replay/accounts.h"
#include "sim/replay/pass.h"
#include "sim/replay/replay_result.h"
#include "sim/replay/schedule.h"
#include "sim/replay/stopwatch.h"
#include "sim/source/source.h"

namespace kv {

struct LoopArgs {
  Backend& backend;
  Source& source;
  Policy& policy;                      // cuts; one without a scorer never does
  std::span<Policy* const> onlookers;  // each with a scorer, which ranks the same pass along and changes nothing
  int sequences = 0;
  int budget = 0;  // as in ReplayArgs
  int interval = 0;
  const Capacity* capacity = nullptr;  // step() cuts where it is passed, too; null: by the steps' keep alone
  int filled = 0;                      // as in BatchShape: fill() will be called
  uint64_t seed = 0;
  std::span<const int32_t> sample_numbers;
  const Baseline* baseline = nullptr;
  std::span<Observer* const> observers;
  bool count_pairs = true;  // ReplayResult's, where an admission or a selection hides some
  bool time_phases = true;  // attention and observation; then no step is recorded
};

// What a loop leaves for others to go on from.
struct LoopState {
  Cache cache;
  std::vector<int32_t> done;    // [sequences] tokens processed
  std::vector<int64_t> events;  // [sequences] cuts so far
};

// The one loop, in two layers: a pass takes blocks of tokens through the source's layers (sim/replay/pass.h); what is
// here says which tokens those are, and cuts after them (sim/replay/cut.h). replay() drives it by a schedule,
// generate() token by token, and Prefill ranks contexts with it.
// Calls: begin or resume, then fill, steps, ranks and decodes, then finish.
class Loop {
 public:
  // Throws UserError when the source lacks what a policy needs.
  explicit Loop(const LoopArgs& args);

  // Calls begin of source, slots and observers. That many pages, of all layers and KV heads, are taken at once; more
  // as entries come.
  void begin(std::span<const std::span<const int32_t>> sequences, int64_t pages = 0);
  // In place of begin: goes on from there, with sequences that begin with the tokens done.
  void resume(std::span<const std::span<const int32_t>> sequences, LoopState state);

  void step(const Step& step);
  // A step after which every scorer has ranked the entries of each sequence that had tokens in it; nothing is cut.
  void rank(std::span<const int32_t> counts);
  // In place of the steps that process the first `entries` tokens: every head of every sequence gets that many entries
  // of random keys and values, and every window of queries random ones. No scorer observes them.
  void fill(int32_t entries);
  // Of a sequence, in one piece. Until it is swept a piece lies there whole.
  static int32_t filled_at_once(const Policy& policy, int64_t sequences);

  // Where entries expire, what the host counts of them meanwhile is a bound: it hears of sweeps at the end.
  // Up to `steps` steps without an event, of one token for each active sequence (active[s] = 1, else 0). Pages are
  // taken for all of them; the first runs eagerly, the rest from a recording, where nobody wants to see each step and
  // there are enough of them to repay it. After every `pause_every` of them, and at the end, `pause` is told how many
  // were made since and whether from a recording; false ends the run. The source must find its ids on the backend:
  // nothing is uploaded between steps.
  using Pause = std::function<bool(int steps, bool recorded)>;
  void decode(std::span<const int32_t> active, int steps, int pause_every, const Pause& pause);

  ReplayResult finish();
  // After finish(), once: what another loop, which cuts nothing, can go on from.
  LoopState leave();

  std::span<const int32_t> tokens_done() const { return pass_.done(); }  // [sequences]
  // Of a sequence, with a capacity: no event falls within fewer (sim/replay/fullness.h).
  int32_t tokens_until_full(int sequence) const;
  const Cache& cache() const { return pass_.cache(); }
  // That of an onlooker, with its scores of the last event or rank().
  const Ranker& onlooking(size_t onlooker) const { return pass_.rankers()[first_onlooker() + onlooker]; }
  double onlooking_seconds(size_t onlooker) const { return pass_.score_seconds(first_onlooker() + onlooker); }
  double eviction_seconds() const { return score_seconds() + result_.evict_seconds; }  // as of the last step

 private:
  size_t first_onlooker() const { return args_.policy.scorer ? 1 : 0; }
  double score_seconds() const { return args_.policy.scorer ? pass_.score_seconds(0) : 0; }
  BatchShape batch_shape();
  void begin_source(std::span<const std::span<const int32_t>> ids);
  void note_block(const TokenLosses& losses);
  void sweep_for(const Step& step);
  void sweep_all();  // nothing where nothing expires
  // Those for which it is time.
  void sweep_aged();
  // Whether there was one.
  bool sweep(std::span<const uint8_t> sequences);
  void mark_due(const Step& step);
  // What the step or the capacity leaves of a sequence, as totals_ has it.
  int64_t left_by(const Step& step, int sequence) const;
  void cut();

  const LoopArgs args_;
  Pass pass_;
  Stopwatch watch_;
  Accounts accounts_;
  ReplayResult result_;
  std::vector<int64_t> totals_;  // [sequences] entries that an event leaves, over all layers and heads; −1 = no event
  std::vector<int64_t> events_;  // [sequences], once finished
  std::vector<int32_t> numbers_;
};

}  // namespace kv
