#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/cache/cache.h"
#include "sim/policy/observer.h"
#include "sim/policy/policy.h"
#include "sim/replay/schedule.h"
#include "sim/source/source.h"

namespace kv {

struct ReplayArgs {
  Backend& backend;
  Source& source;
  Policy& policy;
  std::span<const std::span<const int32_t>> sequences;  // token ids
  const Schedule& schedule;
  int budget = 0;  // for BatchShape; 0 in one-shot compression
  int interval = 0;
  uint64_t seed = 0;
  std::span<const int32_t> sample_numbers;  // [sequences]; empty = 0, 1, 2, …
  const Baseline* baseline = nullptr;       // required when the policy asks for the future
  std::span<Observer* const> observers;
};

// What really happened, measured on the cache itself.
struct ReplayResult {
  struct PerSequence {
    int64_t events = 0;
    double kept_mean = 0;  // entries a (layer, head) after the last event, or at the end without events
    int64_t kept_max = 0;
    int64_t peak_entries = 0;  // over all layers and heads
    int64_t end_entries = 0;
    int64_t attended_pairs = 0;  // Σ over queries, layers and KV heads of the entries they saw
  };
  std::vector<PerSequence> sequences;
  size_t peak_kv_bytes = 0;      // pages in use at the peak: K, V, positions
  size_t peak_column_bytes = 0;  // of the policy's entry columns
  size_t end_kv_bytes = 0;       // pages in use at the end: K, V, positions
  // Seconds; wall clock.
  double total_seconds = 0;
  double attention_seconds = 0;
  double observe_seconds = 0;  // the scorer's bookkeeping after each block
  double score_seconds = 0;
  double evict_seconds = 0;  // the rest of the events: marking, allocation, selection, compaction, freeing pages
  double begin_seconds = 0;  // the scorer's preparation: an oracle's tables
};

// Drives the loop (sim/replay/loop.h) by a schedule, over token ids that are known.
// Throws UserError when the source lacks what the policy needs. KV_CHECKs that every event keeps exactly what was
// asked.
ReplayResult replay(const ReplayArgs& args);

}  // namespace kv
