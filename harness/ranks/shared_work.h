#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "harness/ranks/ranks.h"

namespace kv {

// Work that ranks take piece by piece, from several queues, until none is left, and what they have finished of it. A
// piece is asked for where it is wanted, so that it is nobody's loss where others are slow; one that a rank had begun
// when it was lost is nobody's, and all begin again: what is finished they must know by themselves.
class SharedWork {
 public:
  // Collective.
  SharedWork(Ranks& ranks, int queues);

  // The number of a queue's next piece, which nobody else gets; there is no end of them.
  int64_t take(int queue) { return counts_->add(queue, 1); }
  // Cases that are there now, whoever computed them; those of all ranks.
  int64_t add_finished(int64_t cases) { return counts_->add(first_ + kFinished, cases) + cases; }
  // What this rank computed, in how many seconds.
  void add_computed(int64_t cases, double seconds);
  int64_t computed() { return counts_->add(first_ + kComputed, 0); }
  double computed_seconds() { return static_cast<double>(counts_->add(first_ + kMicroseconds, 0)) * 1e-6; }

  // How a rank comes to the end of its work.
  enum class End { kNothingLeft, kFailed };  // failed: it takes nothing more, and what it had begun is left
  struct Outcome {
    std::vector<int> lost;     // ranks that are gone, as they were numbered until now
    std::vector<int> numbers;  // theirs, as messages name them
    bool begin_again = false;  // something that was begun may be left
  };
  // Collective of those that live: waits for the others, and leaves out who is gone. The first rank calls `look`
  // meanwhile with how many cases are finished. Nobody waits inside MPI, which would take a core.
  Outcome await_all(End end, const std::function<void(int64_t finished)>& look);

 private:
  enum Count { kFinished, kComputed, kMicroseconds, kFailures, kOutcome, kCounts };  // beside those of the queues
  enum State { kAtWork, kReady, kLost };                                             // of a rank, after them

  int state(int rank) const { return first_ + kCounts + rank; }
  void decide(const std::function<void(int64_t finished)>& look);

  Ranks& ranks_;
  int first_;  // after the queues
  std::unique_ptr<SharedCounts> counts_;
};

}  // namespace kv
