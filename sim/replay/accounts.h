#pragma once

#include <cstdint>
#include <vector>

#include "sim/cache/block.h"
#include "sim/cache/cache.h"
#include "sim/replay/replay_result.h"

namespace kv {

// Entries of one sequence in all layers and heads, as the host knows them.
int64_t resident_entries(const Cache& cache, int sequence);

// What happens to each sequence of a cache, counted on the cache, not taken from what was asked.
class Accounts {
 public:
  explicit Accounts(int sequences) : sequences_(static_cast<size_t>(sequences)) {}

  // A block has run and nothing is cut yet.
  void note_block(const Block& block, const Cache& cache);
  void note_peak(const Cache& cache);
  // A cut after so many tokens of the sequence.
  void note_event(int sequence, int32_t tokens_seen, const Cache& cache);
  // The sequence comes with so many events behind it.
  void resume(int sequence, int64_t events, const Cache& cache);
  std::vector<ReplayResult::PerSequence> close(const Cache& cache);

 private:
  ReplayResult::PerSequence& of(int sequence) { return sequences_[static_cast<size_t>(sequence)]; }
  void measure_kept(int sequence, const Cache& cache);

  std::vector<ReplayResult::PerSequence> sequences_;
};

}  // namespace kv
