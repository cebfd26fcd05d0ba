#pragma once

#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace kv {

// Seconds that the device spends in phases of a pass: their ends are moments in the order of its ops, so that nobody
// waits between them.
class PhaseTimer {
 public:
  explicit PhaseTimer(Backend& backend) : backend_(backend) {}

  void start() { begin_ = backend_.mark(); }
  // `sum` must live until settle().
  void stop(double& sum) { phases_.push_back({std::move(begin_), backend_.mark(), &sum}); }
  // Adds the phases to their sums, which waits for the last of them.
  void settle() {
    for (const Phase& phase : phases_) *phase.sum += phase.end->seconds_since(*phase.begin);
    phases_.clear();
  }

 private:
  struct Phase {
    std::unique_ptr<Moment> begin, end;
    double* sum;
  };

  Backend& backend_;
  std::unique_ptr<Moment> begin_;
  std::vector<Phase> phases_;
};

}  // namespace kv
