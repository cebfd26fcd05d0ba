#include "harness/ranks/shared_work.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

namespace kv {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(20);
// Ranks that die together, with their machine, fall silent one sign after the other.
constexpr auto kUntilAllAreSilent = std::chrono::seconds(1);
enum Decision { kUndecided, kDone, kAgain };

}  // namespace

SharedWork::SharedWork(Ranks& ranks, int queues)
    : ranks_(ranks), first_(queues), counts_(ranks.counts(queues + kCounts + ranks.size())) {
  if (ranks.is_first()) ranks.bear_silence(true);
}

void SharedWork::add_computed(int64_t cases, double seconds) {
  counts_->add(first_ + kComputed, cases);
  counts_->add(first_ + kMicroseconds, std::llround(seconds * 1e6));
}

SharedWork::Outcome SharedWork::await_all(End end, const std::function<void(int64_t finished)>& look) {
  if (end == End::kFailed) counts_->add(first_ + kFailures, 1);
  counts_->add(state(ranks_.rank()), kReady);
  if (ranks_.is_first()) decide(look);
  int64_t decision = kUndecided;
  while ((decision = counts_->add(first_ + kOutcome, 0)) == kUndecided) std::this_thread::sleep_for(kBetweenLooks);
  Outcome outcome{.begin_again = decision == kAgain};
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    if (counts_->add(state(rank), 0) < kLost) continue;
    outcome.lost.push_back(rank);
    outcome.numbers.push_back(ranks_.number_of(rank));
  }
  if (!outcome.lost.empty()) ranks_.leave_out(outcome.lost);
  if (ranks_.is_first()) ranks_.bear_silence(false);
  return outcome;
}

// The first rank says who is lost before it says that it has decided: all others then know the same.
void SharedWork::decide(const std::function<void(int64_t finished)>& look) {
  std::vector<int> silent = ranks_.silent();
  const auto are_all_here_or_silent = [&] {
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const bool is_silent = std::find(silent.begin(), silent.end(), rank) != silent.end();
      if (!is_silent && counts_->add(state(rank), 0) == kAtWork) return false;
    }
    return true;
  };
  using Clock = std::chrono::steady_clock;
  Clock::time_point changed = silent.empty() ? Clock::time_point() : Clock::now();
  while (!are_all_here_or_silent() || Clock::now() - changed < kUntilAllAreSilent) {
    look(counts_->add(first_ + kFinished, 0));
    std::this_thread::sleep_for(kBetweenLooks);
    if (std::vector<int> now = ranks_.silent(); now != silent) {
      silent = std::move(now);
      changed = Clock::now();
    }
  }
  look(counts_->add(first_ + kFinished, 0));
  for (const int rank : silent) counts_->add(state(rank), kLost);
  const bool failed = counts_->add(first_ + kFailures, 0) > 0;
  counts_->add(first_ + kOutcome, failed || !silent.empty() ? kAgain : kDone);
}

}  // namespace kv
