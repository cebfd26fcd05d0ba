// Pruning by how full a cache is (004, Appendix K): when events fall, and what every head then loses.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "sim/cache/to_host.h"
#include "sim/policy/capacity.h"
#include "sim/replay/replay.h"
#include "sim/replay/resident_bound.h"
#include "tests/support/backends.h"
#include "tests/support/chosen_admission.h"
#include "tests/support/replayed.h"
#include "tests/support/tiny_source.h"

namespace kv::ref {
namespace {

constexpr int kLayers = 2, kHeads = 2, kRows = kLayers * kHeads, kWindow = 6;

// Uneven: heads let in all, a half, a fifth and nothing.
bool stays(int32_t position, int layer, int head) {
  constexpr int kOneOf[kRows] = {1, 2, 5, 1000};
  return (position + 1) % kOneOf[layer * kHeads + head] == 0;
}

// In no order of positions, and without equals.
float score_of(int32_t position) { return static_cast<float>(position * 37 % 101); }

struct Ran {
  std::vector<std::vector<int32_t>> positions;  // [layers · heads] of one sequence
  int64_t events = 0;
  int32_t first_event = -1;
  bool operator==(const Ran&) const = default;
};

// Token by token, on lists of positions.
Ran naive(int tokens, const Capacity& capacity, bool admits) {
  Ran ran{.positions = std::vector<std::vector<int32_t>>(kRows)};
  for (int32_t t = 0; t < tokens; ++t) {
    std::vector<int> older(kRows);
    int all_older = 0;
    for (int row = 0; row < kRows; ++row) {
      std::vector<int32_t>& held = ran.positions[row];
      held.push_back(t);
      std::erase_if(held,
                    [&](int32_t p) { return admits && t - p >= kWindow && !stays(p, row / kHeads, row % kHeads); });
      older[row] = static_cast<int>(
          std::count_if(held.begin(), held.end(), [&](int32_t p) { return t - p >= capacity.window; }));
      all_older += older[row];
    }
    if (all_older <= capacity.entries * kRows) continue;
    if (ran.events++ == 0) ran.first_event = t + 1;
    for (int row = 0; row < kRows; ++row) {
      std::vector<int32_t>& held = ran.positions[row];
      std::vector<int32_t> worst(held.begin(), held.begin() + older[row]);
      std::sort(worst.begin(), worst.end(), [](int32_t a, int32_t b) { return score_of(a) < score_of(b); });
      worst.resize(static_cast<size_t>(capacity.drop * older[row]));
      std::erase_if(held, [&](int32_t p) { return std::find(worst.begin(), worst.end(), p) != worst.end(); });
    }
  }
  return ran;
}

// Of the batch's sequences.
std::vector<Ran> replayed(const std::vector<int32_t>& lengths, const Capacity& capacity, bool admits,
                          const char* allocation, int chunk, bool decodes = false) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(kLayers, 4, kHeads, 8);
  std::vector<TinySample> samples;
  std::vector<std::vector<int32_t>> ids;
  for (int32_t s = 0; s < std::ssize(lengths); ++s) {
    samples.push_back(random_sample(info, lengths[s], s + 1));
    ids.emplace_back(static_cast<size_t>(lengths[s]), s);
  }
  TinySource source(*backend, info, std::move(samples));
  Policy policy = policy_of(
      "by-position", std::make_unique<test::ByPosition>([](int, int, int32_t position) { return score_of(position); }));
  policy.allocation = make_allocation(allocation, {});
  if (admits) policy.admission = std::make_unique<ChosenAdmission>(kWindow, stays);
  Schedule schedule = full_schedule(lengths, chunk);
  if (decodes) schedule = token_by_token(schedule, std::vector<int32_t>(lengths.size(), 3));
  std::optional<LoopState> state;
  const ReplayResult result = replay({.backend = *backend,
                                      .source = source,
                                      .policy = policy,
                                      .sequences = std::vector<std::span<const int32_t>>(ids.begin(), ids.end()),
                                      .schedule = schedule,
                                      .budget = capacity.kept(),
                                      .interval = capacity.interval(),
                                      .capacity = &capacity,
                                      .left = &state});
  std::vector<Ran> all;
  for (size_t s = 0; s < lengths.size(); ++s) {
    Ran& ran = all.emplace_back();
    ran.events = result.sequences[s].events;
    ran.first_event = result.sequences[s].first_event;
    for (int row = 0; row < kRows; ++row) {
      const int layer = row / kHeads, its_row = static_cast<int>(s) * kHeads + row % kHeads;
      const int32_t length = state->cache.lengths(layer)[static_cast<size_t>(its_row)];
      ran.positions.push_back(positions_to_host(*backend, state->cache.view(layer), its_row, length));
    }
  }
  return all;
}

// A mean of 12 older entries: heads of four rates pass it when 1 + 1/2 + 1/5 + 0 of each token, older than the window,
// are more than 48.
TEST(Capacity, EventsFallAtTheTokenThatPassesItAndEveryHeadLosesItsShare) {
  const Capacity capacity{.entries = 12, .drop = 0.25, .window = kWindow};
  const std::vector<int32_t> lengths = {150, 97, 20};
  const Ran first = naive(lengths[0], capacity, true);
  EXPECT_EQ(first.first_event, kWindow + 30);  // of the older ones 29 + 14 + 5 = 48, and 30 + 15 + 6 = 51
  EXPECT_GE(first.events, 4);
  for (const int chunk : {1, 7, 64, 1000}) {
    SCOPED_TRACE(chunk);
    const std::vector<Ran> all = replayed(lengths, capacity, true, "share", chunk);
    for (size_t s = 0; s < lengths.size(); ++s) EXPECT_EQ(all[s], naive(lengths[s], capacity, true)) << s;
  }
}

TEST(Capacity, TokensThatComeOneAtATimeMeetTheSameEvents) {
  const Capacity capacity{.entries = 12, .drop = 0.25, .window = kWindow};
  EXPECT_EQ(replayed({120}, capacity, true, "share", 64, true).front(), naive(120, capacity, true));
}

// Without an admission heads are alike, so that a share of each and equal counts are the same.
TEST(Capacity, WithoutAnAdmissionUniformIsShare) {
  for (const int window : {0, 6}) {
    const Capacity capacity{.entries = 20, .drop = 0.1, .window = window};
    const Ran want = naive(90, capacity, false);
    EXPECT_EQ(want.first_event, window + 21);
    EXPECT_GE(want.events, 10);
    for (const char* allocation : {"share", "uniform"}) {
      EXPECT_EQ(replayed({90}, capacity, false, allocation, 32).front(), want) << allocation;
    }
  }
}

// Pooled, equal or by share: an event takes as much of heads that hold as much, and no cache stays too full.
TEST(Capacity, AnyAllocationLeavesTheSameTotalAndKeepsWithinIt) {
  for (const Capacity capacity : {Capacity{.entries = 12, .drop = 0.25, .window = kWindow},
                                  Capacity{.entries = 20, .drop = 0.1, .window = kWindow}}) {
    ASSERT_TRUE(capacity.holds());
    for (const char* allocation : {"uniform", "global", "ada", "share"}) {
      SCOPED_TRACE(allocation);
      const auto total = [](const Ran& ran) {
        int64_t entries = 0;
        for (const auto& row : ran.positions) entries += std::ssize(row);
        return entries;
      };
      const int32_t first = naive(150, capacity, true).first_event;
      EXPECT_EQ(total(replayed({first}, capacity, true, allocation, 64).front()), total(naive(first, capacity, true)));
      for (const int32_t tokens : {first + 1, 80, 149, 150}) {
        const Ran ran = replayed({tokens}, capacity, true, allocation, 64).front();
        EXPECT_GT(ran.events, 0);
        EXPECT_LE(total(ran) - kRows * kWindow, capacity.entries * kRows) << tokens;
      }
    }
  }
}

// Of 30 older entries a tenth, 3; of 10, which are the sinks but for 1, that one.
TEST(Capacity, SinksAreNotAskedFor) {
  const Capacity capacity{.entries = 40, .drop = 0.1, .window = 6, .sinks = 9};
  EXPECT_EQ(capacity.older(36, 100), 30);
  EXPECT_EQ(capacity.older(36, 4), 32);
  EXPECT_EQ(capacity.dropped(30), 3);
  EXPECT_EQ(capacity.dropped(10), 1);
  EXPECT_EQ(capacity.dropped(9), 0);
  EXPECT_EQ(capacity.interval(), 4);  // 41 are one too many
  EXPECT_EQ(capacity.kept(), 6 + 41 - 4);
  EXPECT_TRUE(capacity.holds());  // a tenth of 31
  EXPECT_FALSE((Capacity{.entries = 28, .drop = 0.1, .sinks = 9}).holds());
}

// With the window's and the capacity's entries and the token that passes it; of uneven heads one may have all.
TEST(Capacity, ABoundHoldsOfWhatHeadsHold) {
  SourceInfo info = tiny_info(kLayers, 4, kHeads, 8);
  const Capacity capacity{.entries = 12, .drop = 0.25, .window = kWindow};
  const Schedule schedule = full_schedule(std::vector<int32_t>{150, 10}, 64);
  Policy policy = policy_of("by-position", std::make_unique<test::ByPosition>([](int, int, int32_t) { return 0.0F; }));
  const auto alike = resident_bounds(schedule, policy, info, &capacity);
  EXPECT_EQ(alike[0].longest(), kWindow + 12 + 1);
  EXPECT_EQ(alike[0].pages(), kRows * 2);
  EXPECT_EQ(alike[1].longest(), 10);
  policy.admission = std::make_unique<ChosenAdmission>(kWindow, stays);
  const auto uneven = resident_bounds(schedule, policy, info, &capacity);
  EXPECT_EQ(uneven[0].longest(), 150);
  EXPECT_EQ(uneven[0].pages(), (kRows * 19 + kRows * 15) / 16);
}

}  // namespace
}  // namespace kv::ref
