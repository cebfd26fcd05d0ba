#include "kernels/cpu/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/threads.h"

namespace kv::cpu {
namespace {

TEST(ParallelFor, RunsEveryTaskOnceWhateverTheNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8, 2}) {
    const ref::Threads limit(threads);
    for (const int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      std::atomic<bool> known = true;
      parallel_for(tasks, [&](int64_t index, int thread) {
        ++runs[static_cast<size_t>(index)];
        if (thread < 0 || thread >= threads) known = false;
      });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
      EXPECT_TRUE(known);
    }
  }
}

TEST(ParallelFor, NoTwoTasksShareAThreadsScratch) {
  const ref::Threads limit(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> alone = true;
  for (int round = 0; round < 2000; ++round) {
    parallel_for(16, [&](int64_t, int thread) {
      auto& running = inside[static_cast<size_t>(thread)];
      if (running.fetch_add(1) != 0) alone = false;
      running.fetch_sub(1);
    });
  }
  EXPECT_TRUE(alone);
}

// A job's results are there when it returns, and the next one may use them: 20 000 jobs in a chain.
TEST(ParallelFor, JobsFollowOneAnother) {
  const ref::Threads limit(3);
  std::vector<int64_t> values(5, 0);
  for (int job = 0; job < 20000; ++job) {
    parallel_for(5, [&](int64_t index) { values[static_cast<size_t>(index)] += index; });
  }
  EXPECT_EQ(values, (std::vector<int64_t>{0, 20000, 40000, 60000, 80000}));
}

TEST(ParallelFor, TasksInsideATaskRunToo) {
  const ref::Threads limit(3);
  std::atomic<int> runs = 0;
  parallel_for(6, [&](int64_t) { parallel_for(7, [&](int64_t) { ++runs; }); });
  EXPECT_EQ(runs, 42);
}

TEST(ParallelFor, WorkersThatSleepWakeUp) {
  const ref::Threads limit(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> arrived = 0;
    // Each task waits for the other, so both threads must come.
    parallel_for(2, [&](int64_t) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 2);
  }
}

TEST(ParallelFor, WhatATaskThrowsReachesTheCallerAndTheNextJobRuns) {
  const ref::Threads limit(3);
  std::atomic<int> runs = 0;
  const auto fails = [&](int64_t index) {
    ++runs;
    if (index == 3) throw std::runtime_error("task 3");
  };
  EXPECT_THROW(parallel_for(10, fails), std::runtime_error);
  EXPECT_EQ(runs, 10);
  parallel_for(10, [&](int64_t) { ++runs; });
  EXPECT_EQ(runs, 20);
}

TEST(ParallelFor, ServesSeveralHostThreadsAtOnce) {
  const ref::Threads limit(2);
  std::atomic<int> runs = 0;
  std::vector<std::thread> hosts;
  for (int host = 0; host < 4; ++host) {
    hosts.emplace_back([&] {
      for (int job = 0; job < 500; ++job) parallel_for(4, [&](int64_t) { ++runs; });
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(runs, 4 * 500 * 4);
}

// Waits for so many arrivals, a minute at most: says whether they came.
class Meeting {
 public:
  explicit Meeting(int expected) : expected_(expected) {}
  bool arrive() {
    ++arrived_;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (arrived_ < expected_ && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return arrived_ >= expected_;
  }

 private:
  int expected_;
  std::atomic<int> arrived_ = 0;
};

TEST(SideBySide, TheCallersWorkAtOnceAndHaveOneThreadEach) {
  const ref::Threads limit(2);
  Meeting begin(2), end(2);
  std::atomic<bool> met = true, by_themselves = true;
  side_by_side(2, [&] {
    if (!begin.arrive()) met = false;
    const std::thread::id caller = std::this_thread::get_id();
    parallel_for(100, [&](int64_t) {
      if (std::this_thread::get_id() != caller) by_themselves = false;
    });
    if (!end.arrive()) met = false;
  });
  EXPECT_TRUE(met);
  EXPECT_TRUE(by_themselves);
}

TEST(SideBySide, TheLastCallerHasAllThreads) {
  const ref::Threads limit(2);
  Meeting begin(2);
  std::atomic<bool> first = true, met = false;
  side_by_side(2, [&] {
    begin.arrive();
    if (first.exchange(false)) return;
    // Two tasks that meet are on two threads; the other caller may not have left at the first attempts.
    for (int attempt = 0; attempt < 1000 && !met; ++attempt) {
      std::atomic<int> arrived = 0;
      parallel_for(2, [&](int64_t) {
        ++arrived;
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
        while (arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
        if (arrived == 2 && std::chrono::steady_clock::now() < deadline) met = true;
      });
    }
  });
  EXPECT_TRUE(met);
}

TEST(SideBySide, WhatOneThrowsArrivesWhenAllHaveReturned) {
  const ref::Threads limit(3);
  Meeting begin(3);
  std::atomic<int> returned = 0;
  std::atomic<bool> first = true;
  const auto work = [&] {
    begin.arrive();
    if (first.exchange(false)) throw std::runtime_error("one of them");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++returned;
  };
  EXPECT_THROW(side_by_side(3, work), std::runtime_error);
  EXPECT_EQ(returned, 2);
  std::atomic<int> tasks = 0;
  parallel_for(5, [&](int64_t) { ++tasks; });  // all is as before
  EXPECT_EQ(tasks, 5);
}

}  // namespace
}  // namespace kv::cpu
