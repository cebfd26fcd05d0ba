#include "sim/replay/schedule.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

std::vector<int32_t> counts(const Schedule& schedule, size_t sequence) {
  std::vector<int32_t> result;
  for (const Step& step : schedule) result.push_back(step.counts[sequence]);
  return result;
}

std::vector<int32_t> keeps(const Schedule& schedule, size_t sequence) {
  std::vector<int32_t> result;
  for (const Step& step : schedule) result.push_back(step.keep[sequence]);
  return result;
}

// B = 4, L = 2, T = 9: [0,4) [4,6)* [6,8)* [8,9): the supervised code's M = ceil((9−4)/2) − 1 = 2 events.
TEST(Schedule, DecodeFollowsTheCanonicalLoop) {
  const int32_t length = 9;
  const Schedule schedule = decode_schedule({&length, 1}, 4, 2);
  EXPECT_EQ(counts(schedule, 0), (std::vector<int32_t>{4, 2, 2, 1}));
  EXPECT_EQ(keeps(schedule, 0), (std::vector<int32_t>{-1, 4, 4, -1}));
}

TEST(Schedule, DecodeHasNoUselessEventAfterTheLastToken) {
  const int32_t length = 8;  // M = ceil(4/2) − 1 = 1
  EXPECT_EQ(keeps(decode_schedule({&length, 1}, 4, 2), 0), (std::vector<int32_t>{-1, 4, -1}));
}

// After 8 tokens a cut is due, and 4 + 2k others are cut where they end; those between are as if they did not go on.
TEST(Schedule, PromptsThatEndWhereACutIsDueAreCut) {
  const int32_t lengths[] = {8, 9, 4, 3};
  const Schedule schedule = prompt_decode_schedule(lengths, 4, 2);
  EXPECT_EQ(counts(schedule, 0), (std::vector<int32_t>{4, 2, 2, 0}));
  EXPECT_EQ(keeps(schedule, 0), (std::vector<int32_t>{-1, 4, 4, -1}));
  EXPECT_EQ(keeps(schedule, 1), (std::vector<int32_t>{-1, 4, 4, -1}));
  EXPECT_EQ(keeps(schedule, 2), (std::vector<int32_t>{-1, -1, -1, -1})) << "the budget itself";
  EXPECT_EQ(keeps(schedule, 3), (std::vector<int32_t>{-1, -1, -1, -1}));
  for (size_t s = 1; s < 4; ++s) EXPECT_EQ(counts(schedule, s), counts(decode_schedule(lengths, 4, 2), s));
}

TEST(Schedule, BudgetBeyondTheTextNeverEvicts) {
  const int32_t length = 5;
  const Schedule schedule = decode_schedule({&length, 1}, 8, 2);
  EXPECT_EQ(counts(schedule, 0), (std::vector<int32_t>{5}));
  EXPECT_EQ(keeps(schedule, 0), (std::vector<int32_t>{-1}));
}

TEST(Schedule, RaggedSequencesEndOneByOne) {
  const int32_t lengths[] = {5, 9};
  const Schedule schedule = decode_schedule(lengths, 4, 2);
  EXPECT_EQ(counts(schedule, 0), (std::vector<int32_t>{4, 1, 0, 0}));
  EXPECT_EQ(counts(schedule, 1), (std::vector<int32_t>{4, 2, 2, 1}));
  EXPECT_EQ(keeps(schedule, 0), (std::vector<int32_t>{-1, -1, -1, -1}));
}

TEST(Schedule, LongPrefixesComeInPiecesWithoutEvents) {
  const int32_t length = 8;
  EXPECT_EQ(counts(decode_schedule({&length, 1}, 5, 2, 3), 0), (std::vector<int32_t>{3, 2, 2, 1}));
}

TEST(Schedule, OneShotCutsOnceAtTheEndOfTheContext) {
  const int32_t length = 10;
  const int32_t context = 7;
  const int32_t keep = 3;
  const Schedule schedule = one_shot_schedule({&length, 1}, {&context, 1}, {&keep, 1}, 4);
  EXPECT_EQ(counts(schedule, 0), (std::vector<int32_t>{4, 3, 3}));
  EXPECT_EQ(keeps(schedule, 0), (std::vector<int32_t>{-1, 3, -1}));
}

TEST(Schedule, KeptTokensRoundDownAndNeverVanish) {
  EXPECT_EQ(kept_tokens(10, 0.55), 5);
  EXPECT_EQ(kept_tokens(2048, 0.2), 409);
  EXPECT_EQ(kept_tokens(3, 0.1), 1);
}

// Sequence 0 has a prompt of 5 of its 7 tokens and an event at its end, 1 one of 2 of 4; a third has nothing left.
TEST(TokenByToken, TakesPromptsWholeAndTheRestOneByOne) {
  const std::vector<int32_t> lengths = {7, 4, 2}, contexts = {7, 4, 2}, keep = {3, 2, 1}, prompts = {5, 2, 2};
  const Schedule single = token_by_token(one_shot_schedule(lengths, contexts, keep, 4), prompts);
  const auto expect = [&](size_t i, const std::vector<int32_t>& counts, const std::vector<int32_t>& kept,
                          bool decodes) {
    EXPECT_EQ(single[i].counts, counts) << i;
    EXPECT_EQ(single[i].keep, kept) << i;
    EXPECT_EQ(single[i].decodes, decodes) << i;
  };
  // The steps were {4, 4, 2} and {3, 0, 0} with all events.
  ASSERT_EQ(single.size(), 6U);
  expect(0, {4, 2, 2}, {-1, -1, -1}, false);
  expect(1, {0, 1, 0}, {-1, -1, -1}, true);
  expect(2, {0, 1, 0}, {-1, -1, -1}, true);
  expect(3, {1, 0, 0}, {-1, 2, 1}, false);
  expect(4, {1, 0, 0}, {-1, -1, -1}, true);
  expect(5, {1, 0, 0}, {3, -1, -1}, true);
}

}  // namespace
}  // namespace kv
