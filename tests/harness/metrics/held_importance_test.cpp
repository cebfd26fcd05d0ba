// Importance that a cache holds, whatever took the rest.

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/chosen_admission.h"
#include "tests/support/replayed.h"

namespace kv::test {
namespace {

// One head that attends in proportion to 1, 2, 3, 4, 5, 6: of what comes after four tokens their importance is in
// proportion to 1, 2, 3, 4. Blocks end after 2 (nothing can have left), 4 and 6 tokens (nothing comes).
class HeldImportanceByHand : public ::testing::Test {
 protected:
  ReplayedCase text() {
    const int32_t length = 6;
    ReplayedCase replayed{source_, *backend_, {tiny_sample(6)}, decode_schedule({&length, 1}, 2, 2)};
    replayed.block = 2;
    return replayed;
  }
  static std::vector<Measured> look(ReplayedCase& replayed, const char* every = "4") {
    return measure(replayed, "held_importance", {{"every", every, ""}});
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  WithOutput source_{*backend_, ref::tiny_info(1, 1, 1, 2), {ref::weighted_sample({{1, 2, 3, 4, 5, 6}})}};
};

TEST_F(HeldImportanceByHand, AfterAnEventIsThatOfWhatStayed) {
  ReplayedCase replayed = text();
  replayed.scorer = std::make_unique<ByPosition>(
      [](int, int, int32_t position) { return position == 0 || position == 3 ? 1.0F : 0.0F; });
  const auto rows = look(replayed);
  EXPECT_NEAR(value(rows, "held_importance"), 0.5, kRounded);
  EXPECT_NEAR(value(rows, "held_importance_oracle"), 0.7, kRounded);
}

// Each moment counts as much as another: all is held after two tokens.
TEST_F(HeldImportanceByHand, IsAMeanOverMoments) {
  ReplayedCase replayed = text();
  replayed.scorer = std::make_unique<ByPosition>(
      [](int, int, int32_t position) { return position == 0 || position == 3 ? 1.0F : 0.0F; });
  const auto rows = look(replayed, "2");
  EXPECT_NEAR(value(rows, "held_importance"), (1 + 0.5) / 2, kRounded);
  EXPECT_NEAR(value(rows, "held_importance_oracle"), (1 + 0.7) / 2, kRounded);
}

TEST_F(HeldImportanceByHand, WhatAnAdmissionTurnedAwayIsGoneWithoutAnEvent) {
  ReplayedCase replayed = text();
  replayed.admission = std::make_unique<ref::ChosenAdmission>(
      1, [](int32_t position, int, int) { return position == 0 || position == 3; });
  const auto rows = look(replayed);
  EXPECT_NEAR(value(rows, "held_importance"), 0.5, kRounded);
  EXPECT_NEAR(value(rows, "held_importance_oracle"), 0.7, kRounded);
}

TEST_F(HeldImportanceByHand, TheFullCacheHoldsAll) {
  ReplayedCase replayed = text();
  const auto rows = look(replayed);
  EXPECT_NEAR(value(rows, "held_importance"), 1, kRounded);
  EXPECT_NEAR(value(rows, "held_importance_oracle"), 1, kRounded);
}

TEST_F(HeldImportanceByHand, SaysWhyThereIsNone) {
  ReplayedCase replayed = text();
  EXPECT_EQ(skipped(look(replayed, "6"), "held_importance"), "no moment has a future");
  // Others would be looked at where this one is not.
  ReplayedCase coarse = text();
  EXPECT_EQ(skipped(look(coarse, "1"), "held_importance"),
            "a block has 2 tokens, more than the 1 between looks (prefill_chunk)");
  ReplayedCase again = text();
  EXPECT_THROW(look(again, "0"), UserError);
}

}  // namespace
}  // namespace kv::test
