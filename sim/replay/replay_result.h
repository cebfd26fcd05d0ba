#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kv {

// What really happened, measured on the cache itself.
struct ReplayResult {
  struct PerSequence {
    int64_t events = 0;
    int32_t first_event = -1;  // tokens processed when it fell; −1: there was none
    double kept_mean = 0;      // entries a (layer, head) after the last event, or at the end without events
    int64_t kept_max = 0;
    int64_t peak_entries = 0;  // over all layers and heads
    int64_t end_entries = 0;
    int64_t attended_pairs = 0;  // Σ over queries, layers and KV heads of the entries they saw; −1: not asked for
  };
  std::vector<PerSequence> sequences;
  size_t peak_kv_bytes = 0;      // pages in use at the peak: K, V, positions
  size_t peak_column_bytes = 0;  // of the policy's entry columns and bounds of pages
  size_t end_kv_bytes = 0;       // pages in use at the end: K, V, positions
  double entry_bytes = 0;  // of an entry, in all: K, V, position and expiry, columns, its share of its page's bounds
  size_t query_bytes = 0;  // of a sequence, however many entries it holds: the newest queries that the scorer judges by
  // Seconds. Onlookers' work is in the total only. Attention, admission, observation and scoring are the device's time,
  // the rest is wall clock.
  double total_seconds = 0;  // of a replay with begin_seconds, of a generation from the prompts' first step on
  double attention_seconds = 0;
  double admission_seconds = 0;  // deciding and sweeping, but for decode steps, which may be recorded
  double observe_seconds = 0;    // the scorer's bookkeeping after each block
  double score_seconds = 0;
  double evict_seconds = 0;  // the rest of the events: marking, allocation, selection, compaction, freeing pages
  double begin_seconds = 0;  // the slots' preparation: an oracle's tables
};

}  // namespace kv
