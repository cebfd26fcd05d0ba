#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/protocols/unit.h"
#include "sim/replay/generate.h"
#include "sim/replay/run_footprint.h"

namespace kv {

// What is timed of a case: its settings as numbers.
struct TimedRun {
  int context = 0;     // tokens of the prompt; 0: none is timed
  int new_tokens = 0;  // of the generation whose time is worked out; 0: none is
  int batch = 1;       // 0: the largest that fits
  int budget = 0;      // entries a head that pruning leaves every `interval` tokens; 0: nothing is pruned
  int interval = 0;
  double keep = 0;        // share of the prompt that a cut leaves; 0: nothing is cut
  int prefill_chunk = 0;  // tokens of the prompt that are read at once; 0: as the spec says, or the device and policy
  const Case* unit_case = nullptr;

  static TimedRun of(const Case& unit_case);
};

// Of the prompt that is read before any is timed: 8192, or a whole chunk where that is more, as far as the context
// goes. What a chunk of this size takes for the first time, memory and the choice of kernels, would be in the first
// sample.
int warm_up_tokens(int context, int chunk);

// What the heads of one sequence of the case come to hold at most: over all events of the generation whose time is
// worked out, though only the first is run.
ResidentBound whole_generation(const TimedRun& timed, const Allocation& allocation, const SourceInfo& info,
                               const Arrivals& arrivals = {});

// Time and memory of one case of protocol latency, over random tokens. Rows, one a repetition (sample) where a clock is
// involved:
//   prefill_time           prompt in, first token out, the policy's cuts included; with the axis context. What a policy
//                          loads comes before, and the pool, but for one that grows under an admission
//   compress_time          of which scoring and cutting took; with the axis keep
//   admission_time         of which an admission took to decide and to sweep; not what its attention, which passes over
//                          expired entries, or a pool that grows takes more
//   kept_kv_bytes          of the pages that the prompt leaves: keys, values and positions, without a scorer's columns
//   decode_step_time       a step of the batch between events: at length `context`, or the mean over `new_tokens`
//   step_time              the same at length x, where a generation was sampled
//   eviction_event_time    all that one event over all layers adds to its step, on device and host; its parts are
//                          eviction_score_time and eviction_cut_time
//   decode_time, eviction_time, generation_time  of all new tokens; decode_throughput = batch · new_tokens / the last
//   held_bytes             the model's weights, what the policy learned, and kept_kv_bytes: what 004 calls memory
//   learned_bytes          of the policy, where it has learned
//   weight_bytes, peak_kv_bytes, peak_bytes, batch_size, and max_batch where the axis batch says max
//
// A measurement that has taken 40 seconds is not repeated. Nobody waits for a long generation. A growing cache is timed
// at nine lengths, filled up to each with random keys and values, and the step time integrated between them by the
// trapezoid rule; a pruned one over one whole interval of `interval` steps and the event that ends it, which every
// later interval repeats. After a one-shot cut the policy has nothing more to do, so the steps over what is left are
// those of a full cache of that many entries a head, also where an allocation leaves heads of unequal length. An
// admission lets in its share of what a cache is filled with, too, so lengths are tokens; it is timed without a policy
// that evicts. A batch runs if the whole generation fits (whole_generation); peak_kv_bytes and peak_bytes are of what
// was run, so of uneven heads up to the first event.
class LatencyRunner final : public UnitRunner {
 public:
  explicit LatencyRunner(const UnitBatch& batch);

  std::string inputs() const override { return {}; }
  // What surely does not fit is refused before anything is allocated.
  std::vector<Row> run(const Case& unit_case) override;

 private:
  using Series = std::vector<double>;  // one value a repetition
  struct Interval {
    Series step, score, cut;  // seconds: a step, and the two parts of the event
    size_t peak_kv_bytes = 0, peak_bytes = 0;
  };
  struct Prompt {
    Series first_token, compress, admission;  // seconds: the whole, and scoring and cutting, or admission, in it
  };
  // One call of generate().
  struct Probe {
    int prompt = 0;  // tokens
    int filled = 0;  // of which entries stand already
    int new_tokens = 1;
  };

  std::vector<Row> measure(const TimedRun& timed, int batch);
  std::vector<Row> measure_largest(const TimedRun& timed);
  int largest_batch(const TimedRun& timed) const;
  Footprint footprint(const TimedRun& timed, int batch, Foreseen foreseen) const;
  size_t learned_bytes(const TimedRun& timed) const;
  // Tokens of a sequence in a step of the prefill.
  int prefill_chunk(const TimedRun& timed, const Policy& policy, int batch) const;

  // Calls it once a repetition, but no more after kLongEnough seconds.
  template <class Measure>
  void repeat(const Measure& measure) const;
  Prompt prefill(const TimedRun& timed, int batch);
  Series steps_at(const TimedRun& timed, int batch, int length);
  const Interval& interval_of(const TimedRun& timed, int batch);
  GenerateResult probe(const TimedRun& timed, int batch, const Probe& span);
  // Seconds of the steps that take every head from `from` to `to` entries, and rows of the lengths looked at.
  Series growth(const TimedRun& timed, int batch, int from, int to, std::vector<Row>& rows);
  void add_generation(const TimedRun& timed, int batch, std::vector<Row>& rows);
  void add_event(const TimedRun& timed, const Interval& interval, std::vector<Row>& rows) const;

  void add(const TimedRun& timed, const char* metric, const Series& values, const char* unit,
           std::vector<Row>& rows) const;
  void add(const TimedRun& timed, const char* metric, double value, const char* unit, std::vector<Row>& rows) const;

  UnitBatch batch_;
  Backend& backend_;
  const Spec& spec_;
  Subject& subject_;
  std::map<std::string, Interval> intervals_;  // shared by cases that differ in new_tokens only
  // What the case that runs has taken:
  size_t peak_kv_bytes_ = 0;
  size_t peak_bytes_ = 0;  // of an interval that another case has measured
  size_t kept_kv_bytes_ = 0;
};

}  // namespace kv
