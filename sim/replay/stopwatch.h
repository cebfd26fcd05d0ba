#pragma once

#include <chrono>
#include <utility>

#include "kernels/backend.h"

namespace kv {

// Wall clock around work of a backend: what was asked for before start() is not counted, what is asked for before
// stop() is waited for.
class Stopwatch {
 public:
  explicit Stopwatch(Backend& backend) : backend_(backend) {}

  void start() {
    backend_.synchronize();
    begin_ = std::chrono::steady_clock::now();
  }
  double seconds() const {
    backend_.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  void stop(double& sum) const { sum += seconds(); }
  // Seconds since start() or the last lap, and starts anew at that very moment: laps add up to the whole.
  double lap() {
    backend_.synchronize();
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(begin_, now)).count();
  }

 private:
  Backend& backend_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace kv
