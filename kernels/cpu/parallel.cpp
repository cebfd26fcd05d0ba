#include "kernels/cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/processors.h"

namespace kv::cpu {

namespace {

// A worker without work looks again this often, some 20 microseconds, before it sleeps: the next tasks of an idle
// machine mostly come within that, and where other programs want the processor, no more than that is taken from them.
constexpr int kLooks = 400;

// Whether this thread is in a task.
thread_local bool in_task = false;

// Threads of side_by_side() that are still at work; 1 without it.
std::atomic<int> callers = 1;

// The threads beside the caller, and the tasks that they share. A thread takes a task by counting the ticket down,
// whose upper half is the number of the job: so a worker that comes late finds nothing left, and nobody waits for a
// thread that the system does not run. OpenMP's barrier waits for every thread, which beside other programs takes a
// time slice at each of the thousands of ops of a step.
class Pool {
 public:
  void run(int64_t tasks, detail::Task task, const void* context, int threads) {
    KV_CHECK(tasks < int64_t{1} << 31);
    start_workers(threads - 1);
    task_ = task;
    context_ = context;
    tasks_ = tasks;
    threads_ = threads;
    unfinished_.store(static_cast<int32_t>(tasks), std::memory_order_relaxed);
    const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
    ticket_.store(uint64_t{job} << 32 | static_cast<uint64_t>(tasks), std::memory_order_release);
    job_.store(job);  // sequentially consistent, or notify_all() may look for sleepers before it
    job_.notify_all();
    take_tasks(0);
    wait_for_others();
    if (const std::exception_ptr thrown = std::exchange(thrown_, nullptr)) std::rethrow_exception(thrown);
  }

  std::mutex& caller() { return caller_; }

 private:
  static uint64_t left(uint64_t ticket) { return ticket & 0xffffffffu; }

  void start_workers(int count) {
    for (; workers_ < count && !no_more_; ++workers_) {
      try {
        std::thread([this, thread = workers_ + 1] { serve(thread); }).detach();
      } catch (const std::system_error&) {  // the system grants no more; those that are there take all tasks
        no_more_ = true;
        return;
      }
    }
  }

  [[noreturn]] void serve(int thread) {
    uint32_t seen = 0;
    while (true) {
      for (int look = 0; look < kLooks && job_.load(std::memory_order_relaxed) == seen; ++look) {
        __builtin_ia32_pause();
      }
      job_.wait(seen, std::memory_order_acquire);
      seen = job_.load(std::memory_order_acquire);
      take_tasks(thread);
    }
  }

  void take_tasks(int thread) {
    in_task = true;
    int32_t taken = 0;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (left(ticket) > 0 && thread < threads_.load(std::memory_order_relaxed)) {
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
      // Taken, so the job stays until this is counted.
      run_task(tasks_ - static_cast<int64_t>(left(ticket)), thread);
      ++taken;
      ticket = ticket_.load(std::memory_order_acquire);
    }
    in_task = false;
    if (taken > 0 && unfinished_.fetch_sub(taken, std::memory_order_acq_rel) == taken) unfinished_.notify_one();
  }

  void run_task(int64_t index, int thread) {
    try {
      task_(context_, index, thread);
    } catch (...) {
      const std::lock_guard lock(throwing_);
      if (!thrown_) thrown_ = std::current_exception();
    }
  }

  void wait_for_others() {
    for (int look = 0; look < kLooks && unfinished_.load(std::memory_order_acquire) > 0; ++look) {
      __builtin_ia32_pause();
    }
    int32_t unfinished = unfinished_.load(std::memory_order_acquire);
    while (unfinished > 0) {
      unfinished_.wait(unfinished, std::memory_order_acquire);
      unfinished = unfinished_.load(std::memory_order_acquire);
    }
  }

  std::mutex caller_;  // of the one job at a time
  int workers_ = 0;
  bool no_more_ = false;
  detail::Task task_ = nullptr;
  const void* context_ = nullptr;
  int64_t tasks_ = 0;
  std::atomic<int> threads_ = 0;
  alignas(64) std::atomic<uint64_t> ticket_ = 0;  // job << 32 | tasks that nobody has taken
  alignas(64) std::atomic<uint32_t> job_ = 0;
  alignas(64) std::atomic<int32_t> unfinished_ = 0;
  std::mutex throwing_;
  std::exception_ptr thrown_;
};

// Never destroyed: its threads end with the process.
Pool& pool() {
  static Pool* const pool = new Pool;
  return *pool;
}

int configured_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const long threads = text ? std::strtol(text, nullptr, 10) : 0;
  return threads >= 1 ? static_cast<int>(std::min(threads, long{1} << 30)) : usable_processors();
}

int& threads() {
  static int count = configured_threads();
  return count;
}

}  // namespace

int thread_count() { return threads(); }

void set_thread_count(int count) {
  KV_CHECK(count >= 1);
  threads() = count;
}

void detail::run_tasks(int64_t tasks, Task task, const void* context) {
  const int free_threads = thread_count() - (callers.load(std::memory_order_relaxed) - 1);
  // A second host thread does its tasks itself rather than to wait for the pool.
  std::unique_lock<std::mutex> caller;
  if (tasks > 1 && free_threads > 1 && !in_task) caller = std::unique_lock(pool().caller(), std::try_to_lock);
  if (caller) {
    pool().run(tasks, task, context, free_threads);
    return;
  }
  for (int64_t index = 0; index < tasks; ++index) task(context, index, 0);
}

void side_by_side(int count, const std::function<void()>& work) {
  KV_CHECK(count >= 1 && !in_task && callers.load() == 1);
  std::mutex throwing;
  std::exception_ptr thrown;
  const auto call = [&] {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(throwing);
      if (!thrown) thrown = std::current_exception();
    }
    callers.fetch_sub(1);
  };
  callers.store(count);
  std::vector<std::thread> others;
  for (int i = 1; i < count; ++i) {
    try {
      others.emplace_back(call);
    } catch (const std::system_error&) {  // the system grants no more
      callers.fetch_sub(count - i);
      break;
    }
  }
  call();
  for (std::thread& other : others) other.join();
  callers.store(1);
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace kv::cpu
