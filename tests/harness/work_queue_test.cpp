#include "harness/work_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace kv {
namespace {

TEST(WorkQueue, EveryItemIsOneThreads) {
  std::vector<size_t> items(1000);
  for (size_t i = 0; i < items.size(); ++i) items[i] = i;
  std::vector<std::atomic<int>> taken(items.size());
  WorkQueue queue(items);
  const auto work = [&] { queue.drain([&](size_t item) { ++taken[item]; }); };
  std::thread other(work);
  work();
  other.join();
  for (const auto& count : taken) EXPECT_EQ(count, 1);
}

TEST(WorkQueue, AFailureLeavesNothingForTheOthers) {
  WorkQueue queue({3, 4, 5});
  std::vector<size_t> taken;
  const auto work = [&](size_t item) {
    taken.push_back(item);
    if (item == 4) throw std::runtime_error("4");
  };
  EXPECT_THROW(queue.drain(work), std::runtime_error);
  queue.drain(work);
  EXPECT_EQ(taken, (std::vector<size_t>{3, 4}));
}

}  // namespace
}  // namespace kv
