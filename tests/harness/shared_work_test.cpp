// Ranks take pieces until none is left, whoever is lost meanwhile.

#include "harness/ranks/shared_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "harness/ranks/signs_of_life.h"
#include "tests/support/thread_ranks.h"

namespace kv {
namespace {

using test::ThreadRanks;
using End = SharedWork::End;

constexpr int kPieces = 40;

// What is finished, as a journal knows it, and what the first rank hears.
struct Sweep {
  std::mutex mutex{};
  std::set<int64_t> finished{};
  int64_t computed = 0;
  std::vector<std::vector<int>> lost{};  // of each round, as the first rank heard it

  bool has(int64_t piece) {
    const std::lock_guard lock(mutex);
    return finished.contains(piece);
  }
  void finish(int64_t piece) {
    const std::lock_guard lock(mutex);
    finished.insert(piece);
  }
};

// Every rank's part: begun(rank) says, of a piece that is not finished, how it goes with the rank.
void sweep(Ranks& ranks, Sweep& all, const std::function<End()>& begun) {
  bool has_failed = false;
  SharedWork::Outcome outcome;
  do {
    SharedWork work(ranks, 1);
    End end = End::kNothingLeft;
    for (int64_t piece = 0; !has_failed && end == End::kNothingLeft && (piece = work.take(0)) < kPieces;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that all get some
      if ((end = begun()) == End::kFailed || all.has(piece)) continue;
      all.finish(piece);
      work.add_computed(1, 0.5);
      work.add_finished(1);
    }
    has_failed = has_failed || end == End::kFailed;
    outcome = work.await_all(end, [](int64_t) {});
    if (!ranks.is_first()) continue;
    all.computed += work.computed();
    EXPECT_NEAR(work.computed_seconds(), 0.5 * static_cast<double>(work.computed()), 1e-5);
    all.lost.push_back(outcome.lost);
  } while (outcome.begin_again);
}

using Lost = std::vector<std::vector<int>>;

TEST(SharedWork, IsDoneOnce) {
  Sweep all;
  ThreadRanks(4).run([&](Ranks& ranks) { sweep(ranks, all, [] { return End::kNothingLeft; }); });
  EXPECT_EQ(all.finished.size(), static_cast<size_t>(kPieces));
  EXPECT_EQ(all.computed, kPieces);
  EXPECT_EQ(all.lost, Lost{{}});
}

// One dies in the first round, one in the second, when numbers have closed up; the others take their time until then.
TEST(SharedWork, WhatARankHadBegunThatDiedTheOthersDo) {
  Sweep all;
  std::atomic<int> dead = 0;
  ThreadRanks(4).run([&](Ranks& ranks) {
    const int self = ranks.rank();
    sweep(ranks, all, [&] {
      const int due = 4 - ranks.size();  // deaths before this round
      if (self == (due == 0 ? 1 : 3) && due < 2) {
        ++dead;
        throw ThreadRanks::Dead();
      }
      while (dead <= due && due < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return End::kNothingLeft;
    });
    EXPECT_EQ(ranks.size(), 2);
    EXPECT_EQ(ranks.rank(), self == 0 ? 0 : 1);
    EXPECT_EQ(ranks.number_of(ranks.rank()), self);
  });
  EXPECT_EQ(all.finished.size(), static_cast<size_t>(kPieces));
  EXPECT_EQ(all.computed, kPieces) << "what the dead ones counted stays";
  EXPECT_EQ(all.lost, (Lost{{1}, {2}, {}}));
}

TEST(SharedWork, ARankThatFailsTakesNothingMoreAndStays) {
  Sweep all;
  std::atomic<int> failures = 0;
  ThreadRanks(3).run([&](Ranks& ranks) {
    sweep(ranks, all, [&] {
      if (ranks.rank() != 1) return End::kNothingLeft;
      ++failures;
      return End::kFailed;
    });
    EXPECT_EQ(ranks.size(), 3);
  });
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(all.finished.size(), static_cast<size_t>(kPieces));
  EXPECT_EQ(all.lost, (Lost{{}, {}}));
}

TEST(SignsOfLife, AreMissedByLooksAndNotByTime) {
  SignsOfLife life({1, 2, 3}, 2);
  EXPECT_EQ(life.look(), std::vector<int>{});
  life.heard(1);
  EXPECT_EQ(life.look(), (std::vector<int>{2, 3}));
  life.forget(3);
  life.heard(3);  // a sign that was on its way
  EXPECT_EQ(life.look(), (std::vector<int>{1, 2}));
  life.heard(2);
  EXPECT_EQ(life.look(), std::vector<int>{1});
  EXPECT_FALSE(life.are_all_forgotten());
  life.forget(1);
  life.forget(2);
  EXPECT_TRUE(life.are_all_forgotten());
}

}  // namespace
}  // namespace kv
