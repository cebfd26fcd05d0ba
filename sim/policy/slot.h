#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "sim/model/model_identity.h"
#include "sim/model/source_info.h"
#include "sim/policy/baseline.h"

namespace kv {

class Learner;

// A file that a slot reads: results depend on its bytes.
struct InputFile {
  std::filesystem::path path;
  std::string sha256;
  std::string slot{};  // whose it is: a kind of PolicySlot (sim/policy/policy.h), which fills it in
};

// What a slot wants prepared. A source that lacks it refuses the policy before step 0.
struct Needs {
  int entry_columns = 0;          // floats of state per cache entry (scorers)
  int head_columns = 0;           // as many more for each query head of the group
  bool column_sums = false;       // attention column sums of each block (scorers)
  int late_queries = 0;           // of a block of several tokens, those that judge once more, by themselves (scorers)
  bool log_sums = false;          // of every query's attention (LayerView::log_sums), of window_queries, too (scorers)
  int window_queries = 0;         // the newest post-RoPE queries of every sequence (scorers)
  bool interval_queries = false;  // window_queries, but no fewer than an interval has tokens
  bool even_intervals = false;    // what it counts by knows events after a fixed number of tokens alone (scorers)
  bool pre_rope_queries = false;
  bool pre_rope_keys = false;
  bool inputs = false;       // of attention blocks (Projections)
  bool page_bounds = false;  // of the cache's keys (PagedView::bounds; selections)
  // observe(), admit() or select() works on the host (its lengths, its segments, uploads) at every step. Without it
  // they only call ops, which generation may record once for many steps (Backend::record, which stops at an upload);
  // view.lengths and view.segments are then those of the recording. Blocks of several tokens are never recorded.
  bool host_steps = false;
  std::optional<BaselineNeeds> future{};  // the full-cache pass with at least that: an oracle

  int window(int interval) const { return interval_queries ? std::max(window_queries, interval) : window_queries; }
  int columns(int group) const { return entry_columns + head_columns * group; }  // of an entry, in all
};

// The batch a slot is about to see.
struct BatchShape {
  Backend* backend = nullptr;
  const SourceInfo* source = nullptr;
  int sequences = 0;
  int budget = 0;    // kept entries a row after an event (decode-time pruning), 0 in one-shot compression
  int interval = 0;  // tokens between events, 0 in one-shot compression
  int filled = 0;    // entries that stand in the cache already, as if earlier events had left them (a timed run)
  uint64_t seed = 0;
  std::span<const int32_t> sample_numbers;  // [sequences]: what a seeded policy mixes in, so batching changes nothing
  const Baseline* future = nullptr;         // non-null exactly where the slot's own needs() ask for it
};

// What the small decisions of a policy share. Calls: check and load, once; then begin before each batch.
class Slot {
 public:
  virtual ~Slot() = default;
  virtual Needs needs() const { return {}; }
  // What can be known before anything runs, and is not asked again: UserError where the slot cannot serve this model
  // (files made for another one are refused). Returns the files that load() must get before begin(): their bytes are in
  // the case's key and in the manifest. `scorer` is Policy::scorer_name, as files made for a scorer quote it.
  virtual std::vector<InputFile> check(const ModelIdentity& /*model*/, std::string_view /*scorer*/) const { return {}; }
  // Reads the files that check() has found good. UserError where one holds other bytes by now.
  virtual void load(std::span<const InputFile>) {}
  virtual void begin(const BatchShape&) {}
  // What its learned parameters take in the backend's memory from begin() on, beside a model of that shape.
  virtual size_t learned_bytes(const SourceInfo&, DType /*activations*/) const { return 0; }
  // What trains it (sim/learned/learner.h): a slot that learns, and whose files are learned. Null: it is what it is.
  virtual Learner* learner() { return nullptr; }
};

// The slot's begin(), with the full-cache pass exactly where its own needs() ask for that.
void begin_slot(Slot& slot, BatchShape shape, const Baseline* pass);

}  // namespace kv
