#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace kv {

// What several threads do among themselves, each taking the next item when it has done one.
class WorkQueue {
 public:
  explicit WorkQueue(std::vector<size_t> items) : items_(std::move(items)) {}

  // Calls work(item) for one item after the other until none is left. What it throws leaves none for the others.
  template <class Work>
  void drain(const Work& work) {
    for (size_t item = 0; take(item);) {
      try {
        work(item);
      } catch (...) {
        end();
        throw;
      }
    }
  }

 private:
  bool take(size_t& item) {
    const std::lock_guard lock(mutex_);
    if (next_ == items_.size()) return false;
    item = items_[next_++];
    return true;
  }

  void end() {
    const std::lock_guard lock(mutex_);
    next_ = items_.size();
  }

  std::mutex mutex_;
  std::vector<size_t> items_;
  size_t next_ = 0;
};

}  // namespace kv
