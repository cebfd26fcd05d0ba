#pragma once

#include <algorithm>
#include <barrier>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "sim/learned/step_part.h"

namespace kv::test {

// Parts of a step that learn at the same time, a thread each.
class ThreadedParts {
 public:
  explicit ThreadedParts(int count) : values_(static_cast<size_t>(count)), together_(count) {}

  // Calls work(part, all) once a part; throws what the first part threw that did, of which the others see no sum.
  void run(const std::function<void(int part, StepParts& all)>& work) {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> thrown(values_.size());
    for (size_t part = 0; part < values_.size(); ++part) {
      threads.emplace_back([&, part] {
        Part mine(*this, part);
        try {
          work(static_cast<int>(part), mine);
        } catch (...) {
          thrown[part] = std::current_exception();
        }
        together_.arrive_and_drop();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& one : thrown) {
      if (one) std::rethrow_exception(one);
    }
  }

 private:
  class Part final : public StepParts {
   public:
    Part(ThreadedParts& all, size_t number) : all_(all), number_(number) {}
    void add_up(std::span<double> values) override {
      all_.values_[number_].assign(values.begin(), values.end());
      all_.together_.arrive_and_wait();
      std::fill(values.begin(), values.end(), 0.0);
      for (const std::vector<double>& part : all_.values_) {
        for (size_t i = 0; i < values.size() && i < part.size(); ++i) values[i] += part[i];
      }
      all_.together_.arrive_and_wait();  // before anybody writes the next ones
    }

   private:
    ThreadedParts& all_;
    size_t number_;
  };

  std::vector<std::vector<double>> values_;  // of each part
  std::barrier<> together_;
};

}  // namespace kv::test
