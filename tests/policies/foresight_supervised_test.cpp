// ForesightKV's first stage: what it learns of Golden, and by which settings.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "policies/parts/foresight_scorer.h"
#include "policies/parts/foresight_training.h"
#include "tests/support/backends.h"
#include "tests/support/close.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/foresight_weights.h"
#include "tests/support/identity.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

class ForesightLearns : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<TinySample> samples;
    for (uint32_t s = 0; s < 3; ++s) samples.push_back(random_sample(info_, kLengths[s], s + 1));
    source_ = std::make_unique<TinySource>(*backend_, info_, std::move(samples));
    for (int32_t s = 0; s < 3; ++s) ids_.emplace_back(static_cast<size_t>(kLengths[s]), s);
    sequences_.assign(ids_.begin(), ids_.end());
    Params params("learn", {{"budget", "24", ""}, {"interval", "12", ""}, {"margin", "0.5", ""}});
    training_.read(params);
  }
  // Σ over texts and layers.
  double loss(const std::vector<float>& parameters, std::vector<double>& gradient) {
    gradient.assign(parameters.size(), 0);
    const auto measured =
        training_.learn({.backend = *backend_, .source = *source_, .sequences = sequences_, .sample_numbers = numbers_},
                        parameters, gradient);
    EXPECT_EQ(measured[0].metric, "hinge_loss");
    overlap_ = measured[1].value;
    return measured[0].value * static_cast<double>(sequences_.size());
  }

  static constexpr int32_t kLengths[] = {90, 61, 37};  // of which the last has one event, at its last token but one
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  SourceInfo info_ = tiny_info(2, 4, 2, 8);
  std::unique_ptr<TinySource> source_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<std::span<const int32_t>> sequences_;
  const std::vector<int32_t> numbers_ = {0, 1, 2};
  ForesightScorer scorer_{ForesightShape{}};
  ForesightTraining training_{scorer_, "foresight-kv"};
  double overlap_ = 0;
};

// Along the gradient and along directions of one head alone, against differences of the loss. The hinge is piecewise
// linear in scores that bend, so a step is small and both sides of it are taken.
TEST_F(ForesightLearns, ByTheSlopeOfItsLoss) {
  std::vector<float> parameters = ForesightWeights(ForesightShape{}).parameters();
  std::vector<double> gradient, ignored;
  loss(parameters, gradient);
  const auto per_head = static_cast<size_t>(std::ssize(parameters) / 4);
  for (int head = -1; head < 4; ++head) {
    double square = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      if (head < 0 || i / per_head == static_cast<size_t>(head)) square += gradient[i] * gradient[i];
    }
    ASSERT_GT(square, 0);
    const double length = 2e-3 / std::sqrt(square);
    const auto at = [&](double sign) {
      std::vector<float> moved = parameters;
      for (size_t i = 0; i < moved.size(); ++i) {
        if (head < 0 || i / per_head == static_cast<size_t>(head)) {
          moved[i] = static_cast<float>(moved[i] + sign * length * gradient[i]);
        }
      }
      return loss(moved, ignored);
    };
    EXPECT_NEAR((at(1) - at(-1)) / (2 * length) / square, 1, 0.02) << "head " << head;
  }
}

TEST_F(ForesightLearns, ToEvictWhatGoldenEvicts) {
  std::vector<float> parameters = training_.initial(info_, 1);
  std::vector<double> gradient;
  const double before = loss(parameters, gradient), overlap = overlap_;
  for (int step = 0; step < 60; ++step) {
    double square = 0;
    for (const double g : gradient) square += g * g;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i] -= static_cast<float>(0.1 * gradient[i] / std::sqrt(square));
    }
    loss(parameters, gradient);
  }
  EXPECT_LT(loss(parameters, gradient), 0.8 * before);
  EXPECT_GT(overlap_, overlap + 0.1);
}

// A text alone or between others has the same part in the gradient; texts add up.
TEST_F(ForesightLearns, OfEachTextByItself) {
  const std::vector<float> parameters = ForesightWeights(ForesightShape{}).parameters();
  std::vector<double> together, alone, sum(parameters.size(), 0.0);
  loss(parameters, together);
  const std::vector<std::span<const int32_t>> all = sequences_;
  for (const auto& ids : all) {
    sequences_ = {ids};
    loss(parameters, alone);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += alone[i];
  }
  double largest = 0;
  for (const double g : together) largest = std::max(largest, std::abs(g));
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(together[i], sum[i], 1e-5 * largest) << i;
}

// A step of several settings learns what it would by its own alone.
TEST_F(ForesightLearns, SettingsInTurn) {
  const std::vector<float> parameters = ForesightWeights(ForesightShape{}).parameters();
  const auto gradient_of = [&](std::vector<GivenParam> given, int64_t step) {
    Params params("learn", std::move(given));
    training_.read(params);
    std::vector<double> gradient(parameters.size(), 0);
    training_.learn(
        {.backend = *backend_, .source = *source_, .sequences = sequences_, .sample_numbers = numbers_, .step = step},
        parameters, gradient);
    return gradient;
  };
  const std::vector<GivenParam> both = {{"settings", "24/12 28/14", ""}};
  const std::vector<double> wide = gradient_of({{"budget", "24", ""}, {"interval", "12", ""}}, 0);
  const std::vector<double> narrow = gradient_of({{"budget", "28", ""}, {"interval", "14", ""}}, 0);
  EXPECT_NE(wide, narrow);
  EXPECT_EQ(gradient_of(both, 0), wide);
  EXPECT_EQ(gradient_of(both, 1), narrow);
  EXPECT_EQ(gradient_of(both, 2), wide);
  EXPECT_EQ(training_.least_tokens(), 28 + 14 + 1);
}

TEST_F(ForesightLearns, NothingFromScoresThatAreNoNumbers) {
  std::vector<float> parameters = ForesightWeights(ForesightShape{}).parameters();
  std::fill_n(parameters.end() - 20, 20, 3e38F);  // the last head's
  std::vector<double> gradient;
  EXPECT_EQ(test::user_error([&] { loss(parameters, gradient); }),
            "foresight-kv: the score of entry 0 of 36 in layer 1, KV head 1, is inf (expected a finite number)");
}

TEST(ForesightStages, RefusesToLearnWhereGoldenCannotJudge) {
  ForesightScorer scorer{ForesightShape{}};
  ForesightTraining training(scorer, "foresight-kv");
  EXPECT_EQ(test::user_error([&] {
              Params params("learn", {{"budget", "100", ""}, {"interval", "64", ""}});
              training.read(params);
            }),
            "learn: budget = 100: expected a multiple of the interval 64 that is above it");
}

// An option of the other stage would be ignored, so it is refused.
TEST(ForesightStages, RefusesToLearnByWhatItsStageDoesNotHave) {
  const auto refusal = [&](std::vector<GivenParam> given, const std::string& weights = "w") {
    ForesightScorer scorer{ForesightShape{}};
    ForesightTraining training(scorer, weights);
    return test::user_error([&] {
      Params params("learn", std::move(given));
      training.read(params);
    });
  };
  EXPECT_EQ(refusal({{"reward", "low", ""}}), "learn: reward = low: only stage reinforced has it");
  EXPECT_EQ(refusal({{"stage", "reinforced", ""}, {"start", "s", ""}, {"margin", "0.1", ""}}),
            "learn: margin = 0.1: only stage supervised has it");
  EXPECT_EQ(refusal({{"stage", "reinforced", ""}}),
            "learn: start: stage reinforced goes on from weights, expected a name");
  EXPECT_EQ(
      refusal({{"stage", "reinforced", ""}, {"start", "s", ""}, {"budget", "8194", ""}, {"interval", "4097", ""}}),
      "learn: stage = reinforced: an interval of 4097: expected at most 4096 in this stage");
  EXPECT_EQ(refusal({{"budget", "131072", ""}}), "learn: budget = 131072: expected at most 65536");
  EXPECT_EQ(refusal({}, "initial"), "foresight-kv: weights = initial are no file, expected another name to train");
}

TEST(ForesightStages, LearnsByThePublishedSettingsOfEachStage) {
  ForesightScorer scorer{ForesightShape{}};
  ForesightTraining training(scorer, "w");
  const auto read = [&](std::vector<GivenParam> given) {
    Params params("learn", std::move(given));
    training.read(params);
    return training.defaults();
  };
  const TrainingOptions supervised = read({});
  EXPECT_EQ(supervised.steps, 1000);
  EXPECT_EQ(supervised.batch, 8);
  EXPECT_EQ(supervised.rate, 0.01);
  EXPECT_EQ(training.least_tokens(), 1024 + 256 + 1);
  const TrainingOptions reinforced = read({{"stage", "reinforced", ""}, {"start", "s", ""}});
  EXPECT_EQ(reinforced.steps, 200);
  EXPECT_EQ(reinforced.batch, 32);
  EXPECT_EQ(reinforced.rate, 3e-4);
  EXPECT_EQ(reinforced.schedule, TrainingOptions::Schedule::kConstant);
  EXPECT_EQ(training.least_tokens(), 1024 + 256 + 2);
}

}  // namespace
}  // namespace kv::ref
