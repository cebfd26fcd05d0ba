#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace kv::cpu {

// Runs task(index) or task(index, thread) for index in [0, tasks) on all threads; thread < thread_count().
// Which thread runs which task is left open, so a task may write only what no other task writes and must not depend on
// `thread` beyond choosing scratch memory: then results are the same for any number of threads.
inline int thread_count() { return omp_get_max_threads(); }

template <class Task>
void parallel_for(int64_t tasks, const Task& task) {
  const auto run = [&task](int64_t index, int thread) {
    if constexpr (requires { task(index, thread); }) {
      task(index, thread);
    } else {
      task(index);
    }
  };
  if (tasks <= 1 || thread_count() == 1) {
    for (int64_t index = 0; index < tasks; ++index) run(index, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t index = 0; index < tasks; ++index) run(index, omp_get_thread_num());
}

// Splits [0, count) into blocks of at most `block` and runs task(first, end) for each in parallel.
template <class Task>
void parallel_blocks(int64_t count, int64_t block, const Task& task) {
  parallel_for((count + block - 1) / block,
               [&](int64_t index) { task(index * block, std::min(count, (index + 1) * block)); });
}

// Uninitialised floats, aligned to a cache line.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t floats)
      : data_(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>((floats + 16) / 16) * 64))) {
    if (!data_) throw std::bad_alloc();
  }
  float* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::unique_ptr<float, Free> data_;
};

}  // namespace kv::cpu
