#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/ranks/ranks.h"

namespace kv::test {

// Ranks that are threads of this process, any of which may die.
class ThreadRanks {
 public:
  // What a rank throws that dies: it is silent from then on, and takes part in nothing.
  struct Dead {};

  explicit ThreadRanks(int size) : size_(size) {}

  // Returns when work(ranks) has returned on all of them, or thrown Dead.
  void run(const std::function<void(Ranks&)>& work) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        Rank self(*this, rank);
        try {
          work(self);
        } catch (const Dead&) {
          const std::lock_guard lock(mutex_);
          dead_.insert(rank);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  class Counts final : public SharedCounts {
   public:
    explicit Counts(int number) : counts_(static_cast<size_t>(number)) {}
    int64_t add(int count, int64_t amount) override {
      const std::lock_guard lock(mutex_);
      return std::exchange(counts_.at(static_cast<size_t>(count)), counts_.at(static_cast<size_t>(count)) + amount);
    }

   private:
    std::mutex mutex_;
    std::vector<int64_t> counts_;
  };

  class View final : public SharedCounts {
   public:
    explicit View(std::shared_ptr<Counts> counts) : counts_(std::move(counts)) {}
    int64_t add(int count, int64_t amount) override { return counts_->add(count, amount); }

   private:
    std::shared_ptr<Counts> counts_;
  };

  // What those said that came to one collective call, and the memory that they got of it.
  struct Meeting {
    std::map<int, std::string> said{};
    std::shared_ptr<Counts> counts{};
  };

  class Rank final : public Ranks {
   public:
    Rank(ThreadRanks& all, int self) : all_(all), self_(self), members_(static_cast<size_t>(all.size_)) {
      std::iota(members_.begin(), members_.end(), 0);
    }
    int rank() const override {
      return static_cast<int>(std::find(members_.begin(), members_.end(), self_) - members_.begin());
    }
    int size() const override { return static_cast<int>(members_.size()); }
    int number_of(int rank) const override { return members_[static_cast<size_t>(rank)]; }
    std::vector<std::string> gather(const std::string& text) override {
      std::vector<std::string> all;
      for (const auto& [rank, said] : meet(text, 0).said) all.push_back(said);
      return all;
    }
    std::unique_ptr<SharedCounts> counts(int number) override {
      return std::make_unique<View>(meet("", number).counts);
    }
    void add_up(std::span<double>) override { std::abort(); }
    std::vector<int> silent() override {
      const std::lock_guard lock(all_.mutex_);
      std::vector<int> found;
      for (int rank = 0; rank < size(); ++rank) {
        if (all_.dead_.contains(members_[static_cast<size_t>(rank)])) found.push_back(rank);
      }
      return found;
    }
    void bear_silence(bool) override {}
    void leave_out(const std::vector<int>& silent) override {
      std::vector<int> left;
      for (int rank = 0; rank < size(); ++rank) {
        if (std::find(silent.begin(), silent.end(), rank) == silent.end()) {
          left.push_back(members_[static_cast<size_t>(rank)]);
        }
      }
      members_ = left;
      meetings_ = 0;
    }
    [[noreturn]] void end_all(int exit_code) override { std::_Exit(exit_code); }

   private:
    const Meeting& meet(const std::string& said, int counts) {
      std::unique_lock lock(all_.mutex_);
      Meeting& meeting = all_.meetings_[{members_, meetings_++}];
      if (!meeting.counts) meeting.counts = std::make_shared<Counts>(counts);
      meeting.said[self_] = said;
      all_.somebody_came_.notify_all();
      all_.somebody_came_.wait(lock, [&] { return meeting.said.size() == members_.size(); });
      return meeting;
    }

    ThreadRanks& all_;
    int self_;
    std::vector<int> members_;
    int meetings_ = 0;  // of these members
  };

  int size_;
  std::mutex mutex_;
  std::condition_variable somebody_came_;
  std::set<int> dead_;
  std::map<std::pair<std::vector<int>, int>, Meeting> meetings_;
};

}  // namespace kv::test
