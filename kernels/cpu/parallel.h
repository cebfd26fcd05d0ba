#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>

namespace kv::cpu {

// Threads that parallel_for uses, the caller among them. At first OMP_NUM_THREADS, which users of other tools set,
// where it is a number from 1 on; else one for each processor that this process may run on, or as many as its control
// group grants it, if those are fewer.
int thread_count();
void set_thread_count(int threads);  // at least 1; not while a parallel_for runs

namespace detail {
using Task = void (*)(const void* context, int64_t index, int thread);
void run_tasks(int64_t tasks, Task task, const void* context);
}  // namespace detail

// Runs task(index) or task(index, thread) for index in [0, tasks) on all threads; thread < thread_count().
// Which thread runs which task is left open, so a task may write only what no other task writes and must not depend on
// `thread` beyond choosing scratch memory: then results are the same for any number of threads. Inside a task the tasks
// of another parallel_for run one after the other. What a task throws reaches the caller once
// none runs any more, the first of several; tasks that had not begun may never run.
template <class Task>
void parallel_for(int64_t tasks, const Task& task) {
  detail::run_tasks(
      tasks,
      [](const void* context, int64_t index, [[maybe_unused]] int thread) {
        const Task& call = *static_cast<const Task*>(context);
        if constexpr (requires { call(index, thread); }) {
          call(index, thread);
        } else {
          call(index);
        }
      },
      &task);
}

// Splits [0, count) into blocks of at most `block` and runs task(first, end) for each in parallel.
template <class Task>
void parallel_blocks(int64_t count, int64_t block, const Task& task) {
  parallel_for((count + block - 1) / block,
               [&](int64_t index) { task(index * block, std::min(count, (index + 1) * block)); });
}

// Runs `work` on this thread and on up to count - 1 others at once, and returns when all have returned: how many there
// are is the system's to say, so they share what there is to do among themselves. Each is the caller of its own ops,
// which then have the processors that the others leave: one each while all work, more for the last ones. So threads
// wait for each other once a piece of work and not at every op. What one throws reaches the caller once all have
// returned, the first of several. Not inside a task or another side_by_side().
void side_by_side(int count, const std::function<void()>& work);

// Uninitialised floats, aligned to a cache line. In a debug build they are NaN, so that an op that reads what it has
// not written shows.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t floats)
      : data_(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>((floats + 16) / 16) * 64))) {
    if (!data_) throw std::bad_alloc();
#ifndef NDEBUG
    std::memset(data_.get(), 0xFF, static_cast<size_t>((floats + 16) / 16) * 64);
#endif
  }
  float* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::unique_ptr<float, Free> data_;
};

}  // namespace kv::cpu
