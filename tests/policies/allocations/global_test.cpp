#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "kernels/error.h"
#include "tests/support/policy_runs.h"

namespace kv::ref {
namespace {

class Global : public testing::Test {
 protected:
  Global() : backend_(make_backend("cpu")), info_(tiny_info(3, 4, 2, 8)) {
    source_ = std::make_unique<TinySource>(*backend_, info_, std::vector{random_sample(info_, 100, 3)});
  }

  // One event of six heads of 99 entries, which leaves 20 a head. keydiff protects nothing.
  std::vector<Event> run(const Options& options, int kept = 20) {
    RunArgs args = one_shot_run("keydiff", {}, {0}, {100}, {kept});
    args.allocation = {"global", options};
    return run_policy(*source_, *backend_, args).events;
  }

  // Of each head, how many of the best `total` scores of these events it has.
  static std::vector<size_t> best(std::span<const Event> heads, size_t total) {
    std::vector<std::tuple<float, size_t>> all;
    for (size_t h = 0; h < heads.size(); ++h) {
      for (const float score : heads[h].scores) all.emplace_back(-score, h);
    }
    std::sort(all.begin(), all.end());
    std::vector<size_t> counts(heads.size(), 0);
    for (size_t i = 0; i < total; ++i) ++counts[std::get<1>(all[i])];
    return counts;
  }

  static std::vector<size_t> kept(std::span<const Event> heads) {
    std::vector<size_t> counts;
    for (const Event& event : heads) counts.push_back(event.kept.size());
    return counts;
  }

  std::unique_ptr<Backend> backend_;
  SourceInfo info_;
  std::unique_ptr<TinySource> source_;
};

TEST_F(Global, KeepsTheBestOfAllHeadsTogether) {
  const std::vector<Event> events = run({});
  ASSERT_EQ(events.size(), 6U);
  EXPECT_EQ(kept(events), best(events, 120));
  EXPECT_NE(kept(events), std::vector<size_t>(6, 20)) << "the case shows nothing";
}

TEST_F(Global, OrOfEachLayersHeads) {
  const std::vector<Event> events = run({{"scope", "layer", ""}});
  const std::vector<size_t> counts = kept(events);
  for (size_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ((std::vector<size_t>{counts[2 * layer], counts[2 * layer + 1]}),
              best(std::span(events).subspan(2 * layer, 2), 40));
  }
}

// int(0.3 · 20) = 6 a head are apart; the pool chooses 14 a head.
TEST_F(Global, AFloorIsAddedToWhatThePoolChose) {
  const std::vector<Event> events = run({{"floor", "0.3", ""}});
  std::vector<size_t> expected = best(events, 84);
  for (size_t& count : expected) count += 6;
  EXPECT_EQ(kept(events), expected);
  EXPECT_EQ(kept(run({{"floor", "1", ""}})), std::vector<size_t>(6, 20));
}

// At 95 of 99 entries a head, 47 of them apart, floors overflow heads that the pool has filled; the total stays 570.
TEST_F(Global, WhatAFullHeadCannotTakeGoesToTheOthers) {
  const std::vector<Event> events = run({{"floor", "0.5", ""}}, 95);
  const std::vector<size_t> pooled = best(events, 6 * 48), counts = kept(events);
  size_t total = 0, full = 0;
  for (size_t h = 0; h < 6; ++h) {
    total += counts[h];
    full += pooled[h] + 47 > 99;
    EXPECT_LE(counts[h], 99U);
    EXPECT_GE(counts[h], std::min<size_t>(99, pooled[h] + 47));
  }
  EXPECT_EQ(total, 570U);
  EXPECT_GT(full, 0U) << "the case shows nothing";
}

// Scores that an event keeps, given a threshold beside a budget that keeps everything or little.
TEST_F(Global, UnderAThresholdLowerScoresLeaveWhateverTheBudget) {
  std::vector<float> all;
  for (const Event& event : run({})) all.insert(all.end(), event.scores.begin(), event.scores.end());
  std::sort(all.begin(), all.end());
  const float median = all[all.size() / 2];
  for (const int budget : {95, 20}) {
    const std::vector<Event> free = run({}, budget);
    const std::vector<Event> bounded = run({{"threshold", fmt::format("{:.9g}", median), ""}}, budget);
    ASSERT_EQ(bounded.size(), free.size());
    for (size_t h = 0; h < free.size(); ++h) {
      std::vector<int32_t> expected;
      for (const int32_t position : free[h].kept) {
        if (free[h].scores[static_cast<size_t>(position)] >= median) expected.push_back(position);
      }
      EXPECT_EQ(bounded[h].kept, expected) << budget << " " << h;
    }
  }
}

// As the released code looks after every pass: nothing exceeds this budget.
TEST_F(Global, AThresholdActsWhereTheBudgetHasRoom) {
  const std::vector<Event> events = run({{"threshold", "1e30", ""}}, 99);
  EXPECT_EQ(kept(events), std::vector<size_t>(6, 0));
}

// streaming protects 4 sinks and all that it keeps of the newest, snapkv its window.
TEST_F(Global, WhatIsProtectedStaysBelowAnyThreshold) {
  RunArgs args = one_shot_run("snapkv", {}, {0}, {100}, {90});
  args.allocation = {"global", {{"threshold", "1e30", ""}}};
  for (const Event& event : run_policy(*source_, *backend_, args).events) {
    EXPECT_GT(event.protection.recent, 0);
    EXPECT_EQ(event.kept.size(), static_cast<size_t>(event.protection.recent));
  }
}

TEST_F(Global, AThresholdPrunesAtEveryIntervalOfAGeneration) {
  RunArgs args = decode_run("keydiff", {}, {0}, {100}, 40, 10);
  args.allocation = {"global", {{"threshold", "1e30", ""}}};
  const std::vector<Event> events = run_policy(*source_, *backend_, args).events;
  ASSERT_EQ(events.size() % 6, 0U);
  EXPECT_GE(events.size() / 6, 5U);
  for (const Event& event : events) EXPECT_TRUE(event.kept.empty());
}

TEST(GlobalOptions, AThresholdIsANumber) {
  for (const char* text : {"none", "nan", "inf", "1e300", ""}) {
    EXPECT_THROW(make_allocation("global", {{"threshold", text, ""}}), UserError) << text;
  }
  EXPECT_FALSE(make_allocation("global", {{"threshold", "-2.5", ""}})->keeps_total());
  EXPECT_TRUE(make_allocation("global", {})->keeps_total());
}

}  // namespace
}  // namespace kv::ref
