#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/policy/observer.h"
#include "sim/policy/policy.h"
#include "sim/replay/loop.h"
#include "sim/replay/replay.h"
#include "sim/replay/sampling.h"
#include "sim/source/model_source.h"

namespace kv {

struct GenerateArgs {
  Backend& backend;
  ModelSource& source;
  Policy& policy;
  std::span<const std::span<const int32_t>> prompts;  // token ids, at least one each; lengths may differ
  // One of the two protocols, or neither (the full cache):
  int budget = 0;    // decode protocol: cut to `budget` entries a head whenever budget + interval are resident
  int interval = 0;  // tokens between two cuts, from the prompt's on
  std::optional<double> keep;  // one-shot: fraction of each prompt that stays (kept_tokens in sim/replay/schedule.h)
  // To time what follows: the first `filled` tokens of every prompt are not processed, their entries are random (no cut
  // may fall into the prompts, and at least one token of each is left).
  int32_t filled = 0;
  // Goes on from a prefill (sim/replay/prefill.h) or from `left`, which is taken: the tokens done of every prompt stand
  // in its cache, at least one of each is left, and nothing more is cut (a policy without a scorer).
  LoopState* resumed = nullptr;
  // Texts in turns (sim/replay/turns.h): returns as soon as one sequence ends, with what the loop leaves in `left` (not
  // null then). Every new id but a sequence's last is in its cache, and no other.
  bool until_first_end = false;
  std::optional<LoopState>* left = nullptr;
  // [prompts] 1 = goes on, 0 = is left as it is; empty: all go on. Only where something is resumed.
  std::span<const int32_t> active{};
  int max_new_tokens = 128;
  std::span<const int32_t> stop_ids;  // the first of them ends a sequence and is its last id
  Sampling sampling;
  uint64_t seed = 0;                        // of policies that draw
  std::span<const int32_t> sample_numbers;  // [prompts], as in ReplayArgs: what draws mix in; empty = 0, 1, 2, …
  int prefill_chunk = 1024;                 // tokens of a prompt that are processed at once
  std::span<Observer* const> observers;     // see every step, which then runs eagerly; no losses
  bool count_pairs = false;                 // costs.sequences have attended_pairs
};

struct GenerateResult {
  enum class Ending : uint8_t {
    kStop,    // a stop id
    kLength,  // max_new_tokens
  };
  struct Sequence {
    std::vector<int32_t> ids;  // the new ones
    Ending ending = Ending::kLength;
  };
  // Decode steps between two looks of the host.
  struct Stretch {
    int steps = 0;
    bool recorded = false;
    double seconds = 0;
  };
  std::vector<Sequence> sequences;  // [prompts]
  // Phases inside steps are not timed: attention_seconds and observe_seconds stay 0. Steps that a sequence made beyond
  // its stop id, before the host looked (15 at most), count.
  ReplayResult costs;
  // These three add up to costs.total_seconds, but for the microseconds between two clocks. What a policy loads, and
  // a cache that is there at once, come before.
  double prefill_seconds = 0;      // until every first token is known, with the cuts inside the prompts
  double decode_seconds = 0;       // the steps after that, without their cuts
  double evict_seconds = 0;        // scoring and cutting after the first token: all that events add to their steps
  std::vector<Stretch> stretches;  // add up to decode_seconds
  size_t peak_bytes = 0;           // of everything on the backend so far, weights included

  // The time of one step: of those that ran from a recording, or of all where nothing was recorded (kernels/backend.h).
  // Throws UserError where there was none.
  double step_seconds() const;
};

// Continues every prompt token by token over the cache that the policy leaves. The loop is replay's
// (sim/replay/loop.h): a sequence's ids are those that replay would find most likely, given the same steps. Between two
// cuts the steps are recorded once and repeated without the host (Backend::record), unless an observer or the policy
// (Needs) wants to see each. A sequence's text does not depend on the others of its batch, but for rounding:
// products have other shapes beside them, and their lengths decide where attention cuts its sums. Throws UserError: no
// or empty prompts, a budget that the policy refuses, both protocols at once, a protocol without a scorer or a scorer
// without one, sampling parameters outside their range, an id outside the vocabulary.
GenerateResult generate(const GenerateArgs& args);

}  // namespace kv
