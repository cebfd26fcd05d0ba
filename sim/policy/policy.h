#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/paged.h"
#include "sim/cache/block.h"
#include "sim/model/source_info.h"
#include "sim/policy/allocation.h"
#include "sim/policy/baseline.h"
#include "sim/policy/params.h"
#include "sim/policy/protection.h"

namespace kv {

// What a scorer wants prepared. A source that lacks it refuses the policy before step 0.
struct PolicyNeeds {
  int entry_columns = 0;     // floats of state per cache entry
  bool column_sums = false;  // attention column sums of each block
  int window_queries = 0;    // the newest post-RoPE queries of every sequence
  bool pre_rope_queries = false;
  bool future = false;            // the full-cache pass: an oracle
  bool future_block_max = false;  // … with largest attention a block instead of the sum
  // observe() works on the host (its lengths, its segments, uploads) at every step. Without it observe() only calls
  // ops, which generation may record once for many steps; view.lengths and view.segments are then those of the
  // recording.
  bool host_steps = false;
};

// The batch a scorer is about to see.
struct BatchShape {
  Backend* backend = nullptr;
  const SourceInfo* source = nullptr;
  int sequences = 0;
  int budget = 0;    // kept entries a row after an event (decode-time pruning), 0 in one-shot compression
  int interval = 0;  // tokens between events, 0 in one-shot compression
  uint64_t seed = 0;
  std::span<const int32_t> sample_numbers;  // [sequences]: what a seeded policy mixes in, so batching changes nothing
  const Baseline* future = nullptr;         // non-null exactly when needs().future
};

// One layer during a call; every reference is valid only inside it. Row = sequence · kv_heads + head.
struct LayerView {
  Backend& backend;
  int layer = 0;
  int sequences = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  float scale = 0;
  PagedView cache;                   // after the block was appended
  std::span<const int32_t> lengths;  // [rows], host copy of cache.lengths
  float* columns = nullptr;          // pool of the entry columns, writable

  // The block just attended.
  std::span<const Segment> segments;  // [sequences], host
  const Segment* device_segments = nullptr;
  Projections projections;
  const float* column_sums = nullptr;  // [rows, group, pitch]; only where a segment has tokens; null unless needed
  const float* column_max = nullptr;
  int64_t pitch = 0;  // of every [rows, …, pitch] buffer here, >= cache.max_length

  // The newest queries of every sequence, oldest first: [sequences, window, q_heads, head_dim].
  ConstRef window_queries;
  int window = 0;

  int rows() const { return sequences * kv_heads; }
  int group() const { return q_heads / kv_heads; }
};

// Where scores go. Slots of protected entries and rows that are not due need not be written.
struct ScoreOutput {
  float* scores = nullptr;  // [rows, pitch], higher stays
  float* ties = nullptr;    // [rows, pitch], second key; null unless has_ties()
  int64_t pitch = 0;
  const uint8_t* rows_due = nullptr;            // [rows], backend memory
  std::span<const uint8_t> sequences_due;       // [sequences], host
  std::span<const int32_t> tokens_seen;         // [sequences], host: tokens processed so far
  const int32_t* device_tokens_seen = nullptr;  // [sequences]
};

// Ranks cache entries. One call covers every sequence and KV head of a layer; nothing per token reaches the host.
class Scorer {
 public:
  virtual ~Scorer() = default;
  virtual PolicyNeeds needs() const { return {}; }
  virtual bool has_ties() const { return false; }
  // `kept` entries a row stay; interval as in BatchShape.
  virtual Protection protects(int kept, int interval) const = 0;
  // Throws UserError when the policy cannot keep `kept` entries at this interval (B <= L, B <= window, …).
  virtual void check(int kept, int interval) const;
  // Entries that a head must hold at every event, because as many of its newest queries judge the others.
  virtual int least_entries() const { return 0; }
  // Interval the policy really runs at (the original H2O prunes after every token).
  virtual int interval(int asked) const { return asked; }
  virtual void begin(const BatchShape&) {}
  virtual void observe(const LayerView&) {}  // after every block's attention
  virtual void score(const LayerView&, const ScoreOutput&) = 0;
};

// A policy is its slots. `full` has no scorer and never evicts.
struct Policy {
  std::string name;
  std::string scorer_name;  // the policy's name with its options that differ from their defaults, as profiles quote it
  std::unique_ptr<Scorer> scorer;
  std::string allocation_name;
  std::unique_ptr<Allocation> allocation;  // never null
  bool oracle = false;                     // scorer or allocation

  // Of an oracle: which of the two needs the future, for complaints; the scorer where both do.
  const std::string& oracle_name() const { return scorer && scorer->needs().future ? name : allocation_name; }
};

// A slot's filling by name.
struct SlotChoice {
  std::string name;
  std::vector<GivenParam> options{};
};

using ScorerFactory = std::function<std::unique_ptr<Scorer>(Params&)>;

struct PolicyEntry {
  std::string name;
  std::string summary;  // one line, with the source
  ScorerFactory make;   // may return null: never evicts
};

// Registers from a static object in the policy's .cpp:  const RegisterPolicy h2o{{.name = "h2o", …}};
struct RegisterPolicy {
  explicit RegisterPolicy(PolicyEntry entry);
};

// Sorted by name.
std::vector<const PolicyEntry*> policies();

// Throws UserError when the policy cannot prune to `budget` every `interval` tokens: B <= L for any policy (the newest
// L are the block itself), what its scorer refuses, or an interval below the scorer's window where the allocation may
// leave a head fewer entries than that. Returns the interval that it really runs at.
int check_decode(const Policy& policy, int budget, int interval);
// The part of it that is about the interval alone.
void check_interval(const Policy& policy, int interval);

// Of a scorer made elsewhere (null: never evicts), with the uniform allocation.
Policy policy_of(const std::string& name, std::unique_ptr<Scorer> scorer);

// Throws UserError: unknown name (lists the known ones), unknown or ill-typed option, an allocation other than uniform
// for a policy that never evicts.
Policy make_policy(std::string_view name, std::vector<GivenParam> options, SlotChoice allocation = {"uniform"});
std::vector<DeclaredParam> describe_policy(std::string_view name);

}  // namespace kv
