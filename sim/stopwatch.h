#pragma once

#include <chrono>

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

 private:
  Backend& backend_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace kv
