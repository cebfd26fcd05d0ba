#pragma once

#include "kernels/cpu/parallel.h"

namespace kv::ref {

// Sets the number of threads for its lifetime.
class Threads {
 public:
  explicit Threads(int count) : before_(cpu::thread_count()) { cpu::set_thread_count(count); }
  ~Threads() { cpu::set_thread_count(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace kv::ref
