#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include "harness/spec/grid.h"
#include "harness/spec/spec.h"
#include "harness/subject.h"
#include "sim/tasks/sample.h"

namespace kv {

// The texts of all data entries of one model, one number each. Subject, spec and grid must stay alive, and nobody else
// may ask the subject for samples.
class TrainingTexts {
 public:
  TrainingTexts(Subject& subject, const Spec& spec, const Grid& grid, int model);

  int count() const;
  // UserError where an entry has fewer texts than it should, or one has fewer tokens than something is learned from.
  void check(int64_t least_tokens);
  // The texts of those numbers. Those of `next` are begun at once, by another thread: to write a text, or to turn one
  // into tokens, can take as long as half of the time in which a GPU learns from it. UserError where one cannot be had.
  std::vector<Sample> take(const std::vector<int>& numbers, const std::vector<int>& next);

 private:
  std::vector<Sample> read(const std::vector<int>& numbers);
  Sample read(int number);

  Subject& subject_;
  const Spec& spec_;
  std::vector<const Workload*> workloads_;
  std::vector<int> coming_numbers_;
  std::future<std::vector<Sample>> coming_;  // those; ends before the members that it reads
};

}  // namespace kv
