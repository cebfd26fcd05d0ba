#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/policy/policy.h"
#include "sim/replay/loop.h"
#include "sim/replay/run_footprint.h"
#include "sim/source/model_source.h"

namespace kv {

struct PrefillArgs {
  Backend& backend;
  ModelSource& source;
  std::span<const std::span<const int32_t>> contexts;  // token ids, at least one each; lengths may differ
  // Those without a scorer leave the context as it is. Every scorer must be able to keep (Scorer::check) what will be
  // asked of each context.
  std::span<Policy* const> policies;
  // The pass's own, without a scorer: its admission decides what there is to rank. Null: everything.
  Policy* reader = nullptr;
  uint64_t seed = 0;
  std::span<const int32_t> sample_numbers;  // [contexts], as in ReplayArgs
  int prefill_chunk = 1024;
  // Tokens since the last event: scorers judge as at the first one of decode-time pruning, whose budget is the
  // contexts' one length without them. 0: as in one-shot compression, of any lengths.
  int interval = 0;
  std::span<Observer* const> observers{};  // of the pass
};

// One pass over a batch of contexts that serves every policy which leaves prefill alone (one-shot compression): all
// scorers rank the entries in the same pass, and each policy then cuts a copy of the cache. Policies with the same
// scorer and options share its ranking, whatever their allocation; all have the reader's admission.
class Prefill {
 public:
  // Throws UserError where a context is empty, or a policy needs what the model lacks (oracles: the future).
  explicit Prefill(const PrefillArgs& args);

  // The contexts' cache as that policy leaves it: keep[s] entries a (layer, KV head) on average; where no more are
  // there, or without a scorer, all of them. There is room for `room` [contexts] more entries of every head (empty:
  // none) beside what is left. Seconds of cutting are added to `seconds`; copying is what sharing the pass costs.
  // Throws UserError where the policy cannot keep so few.
  LoopState compressed(size_t policy, std::span<const int32_t> keep, double& seconds,
                       std::span<const int32_t> room = {});

  // What that policy's scorer says of the contexts' entries. Requires a scorer. Valid as long as the pass.
  ScoredLayer scored(size_t policy, int layer) const;

  double seconds() const { return seconds_; }  // of the pass, with the scorers' work
  double score_seconds(size_t policy) const;   // of which scoring for that policy took; 0 without a scorer
  size_t context_bytes() const;                // K, V and positions of all contexts

 private:
  Policy& reader() { return args_.reader ? *args_.reader : full_; }
  const Policy& reader() const { return args_.reader ? *args_.reader : full_; }
  Schedule schedule() const;
  RunShape checked_shape() const;  // of the pass; throws MemoryError where it does not fit
  // Pages of the copy that is cut: at first the context, then what is left of it with the room; under an admission of
  // what is there with the room.
  int64_t copy_pages(const Policy& policy, std::span<const int32_t> keep, std::span<const int32_t> room) const;
  void check_memory(const RunShape& shape) const;

  const PrefillArgs args_;
  Policy full_;                   // the reader where none is given
  std::vector<Policy*> ranking_;  // one of each scorer: those that look on
  std::vector<int> onlooker_of_;  // [policies] which of them, −1 without a scorer
  std::vector<int32_t> lengths_;  // [contexts]
  const RunShape shape_;          // before the loop, which allocates
  Loop loop_;
  double seconds_ = 0;
};

}  // namespace kv
