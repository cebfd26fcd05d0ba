#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <vector>

#include "harness/spec/grid.h"
#include "harness/spec/spec.h"
#include "harness/subject.h"

namespace kv {

using SharedIds = std::shared_ptr<const std::vector<int32_t>>;

// The texts of all data entries of one model, one number each. Those that were taken are kept, up to kKeptTokens.
// Subject, spec and grid must stay alive, and nobody else may ask the subject for samples.
class TrainingTexts {
 public:
  static constexpr int64_t kKeptTokens = int64_t{1} << 27;  // half a GB of each process

  TrainingTexts(Subject& subject, const Spec& spec, const Grid& grid, int model, int64_t kept_tokens = kKeptTokens);

  int count() const;
  // UserError where an entry has fewer texts than it should, or one has fewer tokens than something is learned from.
  void check(int64_t least_tokens);
  // The texts of those numbers. UserError where one cannot be had.
  std::vector<SharedIds> take(const std::vector<int>& numbers);
  // They will be taken next: another thread reads them now. To write a text, or to turn one into tokens, can take as
  // long as half of the time in which a GPU learns from it.
  void expect(const std::vector<int>& numbers);

 private:
  std::vector<SharedIds> read(const std::vector<int>& numbers);
  SharedIds read(int number);

  Subject& subject_;
  const Spec& spec_;
  std::vector<const Workload*> workloads_;
  std::map<int, SharedIds> kept_;  // every round reads the same ones; take() waits for the other thread first
  int64_t room_;                   // for more tokens of them
  std::vector<int> expected_;
  std::future<std::vector<SharedIds>> coming_;  // of those; ends before the members that it reads
};

}  // namespace kv
