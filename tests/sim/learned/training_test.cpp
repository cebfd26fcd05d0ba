#include "sim/learned/training.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "sim/learned/learning_rate.h"
#include "sim/source/source.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/threaded_parts.h"
#include "tests/support/tiny_source.h"

namespace kv {
namespace {

// Learns to be (1, 2, 3): its loss is half the squared distance.
class Distance final : public Learner {
 public:
  void read(Params&) override {}
  std::vector<LearnedMeasure> measures() const override {
    return {{.name = "loss", .title = "Half the squared distance"}};
  }
  std::vector<LearnedPart> parts(const SourceInfo&) const override { return {{"point", {3}}}; }
  std::string file_name() const override { return "distance"; }
  std::map<std::string, std::string> settings() const override { return {}; }
  int64_t least_tokens() const override { return 1; }
  std::vector<float> initial(const SourceInfo&, uint64_t) const override { return {0, 0, 0}; }
  void use(const SourceInfo&, std::span<const float>) override {}
  std::vector<LearnedMean> learn(const LearnBatch& batch, std::span<const float> parameters,
                                 std::span<double> gradient) override {
    double loss = 0;
    for (size_t i = 0; i < 3; ++i) {
      const double away = parameters[i] - static_cast<double>(i + 1);
      gradient[i] += away * slope;
      loss += away * away / 2;
    }
    asked.emplace_back("learn");
    batch.when_asked();
    return {{.metric = "loss", .value = loss + more, .weight = weight}};
  }
  void begin_next(const LearnBatch& next) override { asked.push_back(fmt::format("begin {}", next.step)); }
  std::vector<std::string> asked;
  double slope = 1, weight = 1, more = 0;
};

class TrainingSteps : public testing::Test {
 protected:
  std::vector<Measured> step(Training& training) {
    return training.step({.backend = *backend_, .source = source_, .sequences = {}, .sample_numbers = {}});
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  ref::TinySource source_{*backend_, ref::tiny_info(1, 1, 1, 2), {}};
  Distance learner_;
  NamedParts named_{learner_.parts(source_.info()), 1, 1};
};

// The first step of warm-up has rate 0; of the second, Adam's step is the rate in each direction, up to ε.
TEST_F(TrainingSteps, AreAdamsAtTheRateOfTheSchedule) {
  const TrainingOptions options{.steps = 20, .rate = 0.5, .warm_up = 2, .clip = 100};
  Training training(options, learner_, named_, {0, 0, 0});
  step(training);
  EXPECT_EQ(std::vector<float>(training.parameters().begin(), training.parameters().end()),
            (std::vector<float>{0, 0, 0}));
  const std::vector<Measured> second = step(training);
  for (const float moved : training.parameters()) EXPECT_NEAR(moved, 0.25, 1e-6);
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second[0].metric, "loss");
  EXPECT_EQ(second[0].value, 7);
  EXPECT_EQ(second[1].metric, "learning_rate");
  EXPECT_EQ(second[1].value, 0.5 * cosine_after_warm_up(1, 2, 20));
  EXPECT_EQ(second[2].metric, "gradient_norm");
  EXPECT_NEAR(second[2].value, std::sqrt(14.0), 1e-12);
}

TEST_F(TrainingSteps, EndNearWhereTheLossIsLeast) {
  const TrainingOptions options{.steps = 400, .rate = 0.1};
  Training training(options, learner_, named_, {0, 0, 0});
  while (!training.is_done()) step(training);
  EXPECT_EQ(training.steps_done(), 400);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(training.parameters()[i], static_cast<double>(i + 1), 1e-2);
}

TEST_F(TrainingSteps, GoOnFromTheirStateToTheLastBit) {
  const TrainingOptions options{.steps = 30, .rate = 0.1, .schedule = TrainingOptions::Schedule::kConstant};
  Training whole(options, learner_, named_, {0, 0, 0}), first(options, learner_, named_, {0, 0, 0}),
      second(options, learner_, named_, {9, 9, 9});
  for (int i = 0; i < 30; ++i) step(whole);
  for (int i = 0; i < 11; ++i) step(first);
  second.restore(first.state());
  EXPECT_EQ(second.steps_done(), 11);
  while (!second.is_done()) step(second);
  EXPECT_TRUE(std::equal(whole.parameters().begin(), whole.parameters().end(), second.parameters().begin()));
}

// Of two parts whose slopes differ: each takes the step of their sum, and measures the mean by weight.
TEST_F(TrainingSteps, OfPartsAreOneStep) {
  const TrainingOptions options{.steps = 20, .rate = 0.1, .schedule = TrainingOptions::Schedule::kConstant, .clip = 1};
  Training whole(options, learner_, named_, {0, 0, 0});
  learner_.slope = 4;
  step(whole);
  const std::vector<Measured> expected = step(whole);
  std::vector<std::vector<float>> parameters(2);
  test::ThreadedParts(2).run([&](int number, StepParts& all) {
    Distance learner;
    learner.slope = number == 0 ? 1 : 3;
    learner.weight = number == 0 ? 1 : 3;
    learner.more = number == 0 ? 3 : -1;  // of no weight in the mean
    const StepPart part{.all = all, .first_text = number, .step_texts = 2, .step_tokens = 2};
    Training training(options, learner, named_, {0, 0, 0});
    std::vector<Measured> measured;
    for (int i = 0; i < 2; ++i) {
      measured = training.step(
          {.backend = *backend_, .source = source_, .sequences = {}, .sample_numbers = {}, .part = &part});
    }
    parameters[static_cast<size_t>(number)].assign(training.parameters().begin(), training.parameters().end());
    ASSERT_EQ(measured.size(), expected.size());
    for (size_t i = 0; i < measured.size(); ++i) EXPECT_DOUBLE_EQ(measured[i].value, expected[i].value) << i;
  });
  EXPECT_EQ(parameters[0], parameters[1]);
  EXPECT_EQ(parameters[0], std::vector<float>(whole.parameters().begin(), whole.parameters().end()));
}

// Before the step is taken: what is begun does not wait for it.
TEST_F(TrainingSteps, BeginTheNextOneAsSoonAsTheirsIsAskedFor) {
  const TrainingOptions options{.steps = 2, .rate = 0.5};
  Training training(options, learner_, named_, {0, 0, 0});
  const LearnBatch batch{.backend = *backend_, .source = source_, .sequences = {}, .sample_numbers = {}};
  training.step(batch, [&]() -> std::optional<LearnBatch> {
    EXPECT_EQ(learner_.asked, (std::vector<std::string>{"learn"}));
    EXPECT_EQ(training.steps_done(), 0);
    LearnBatch next = batch;
    next.step = 1;
    return next;
  });
  training.step(batch);
  EXPECT_EQ(learner_.asked, (std::vector<std::string>{"learn", "begin 1", "learn"}));
}

TEST_F(TrainingSteps, RefuseAStateOfAnotherSize) {
  const TrainingOptions options;
  Training training(options, learner_, named_, {0, 0, 0}), other(options, learner_, named_, {0, 0});
  EXPECT_EQ(test::user_error([&] { training.restore(other.state()); }),
            "the checkpoint holds 2 parameters, expected 3");
}

TEST_F(TrainingSteps, ChangeNothingWhereTheGradientIsNoNumber) {
  const TrainingOptions options;
  Training training(options, learner_, named_, {0, 0, 0});
  step(training);
  const Training::State before = training.state();
  learner_.slope = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(test::user_error([&] { step(training); }), "step 1: layer 0, KV head 0: point: the gradient is nan");
  const Training::State after = training.state();
  EXPECT_EQ(after.step, before.step);
  EXPECT_EQ(after.parameters, before.parameters);
  EXPECT_EQ(after.adam.mean, before.adam.mean);
}

// Decay pulls towards 0 by rate · decay of what is there, beside Adam's step of the rate itself (AdamW).
TEST_F(TrainingSteps, DecayWhatIsThere) {
  const TrainingOptions options{
      .steps = 9, .rate = 0.5, .warm_up = 1, .schedule = TrainingOptions::Schedule::kConstant, .decay = 0.1};
  Training training(options, learner_, named_, {10, 10, 10});
  step(training);
  for (const float moved : training.parameters()) EXPECT_NEAR(moved, 10 - 0.5 * 0.1 * 10 - 0.5, 1e-5);
}

// A bound of 0 is none: Adam's second moment is then of the gradient as it is.
TEST_F(TrainingSteps, ClipOnlyWhereThereIsABound) {
  const auto square = [&](double clip) {
    const TrainingOptions options{.steps = 20, .clip = clip};
    Training training(options, learner_, named_, {0, 0, 0});
    step(training);
    return training.state().adam.square[2];
  };
  EXPECT_NEAR(square(0), 0.001 * 9, 1e-6);
  EXPECT_NEAR(square(1), 0.001 * 9 / 14, 1e-6);
}

TEST(TrainingOptionsOfASpec, TakeAShareOfTheStepsToWarmUp) {
  const auto warm_up = [](std::vector<GivenParam> given) {
    Params params("learn", std::move(given));
    return TrainingOptions::read(params, {.steps = 50, .warm_up_share = 0.1}).warm_up;
  };
  EXPECT_EQ(warm_up({}), 5);
  EXPECT_EQ(warm_up({{"steps", "400", ""}}), 40);
  EXPECT_EQ(warm_up({{"steps", "4", ""}}), 1);
  EXPECT_EQ(warm_up({{"steps", "400", ""}, {"warm_up", "7", ""}}), 7);
}

// Five texts, three a step: each round of five steps sees every text three times, each five in a row are all of them.
TEST(TextsOfStep, GoRoundAllTextsInANewOrder) {
  std::vector<int> seen;
  for (int64_t i = 0; i < 50; ++i) {
    const std::vector<int> texts = texts_of_step(i, 3, 5, 7);
    EXPECT_EQ(texts, texts_of_step(i, 3, 5, 7));
    seen.insert(seen.end(), texts.begin(), texts.end());
  }
  std::set<std::vector<int>> orders;
  for (auto round = seen.begin(); round != seen.end(); round += 5) {
    EXPECT_EQ(std::set<int>(round, round + 5).size(), 5u);
    orders.insert({round, round + 5});
  }
  EXPECT_GT(orders.size(), 10u);
  EXPECT_NE(texts_of_step(0, 64, 64, 7), texts_of_step(0, 64, 64, 8));
}

TEST(TrainingOptionsOfASpec, AreRefusedWhereTheyMeanNothing) {
  const auto refusal = [](const char* key, const char* value) {
    return test::user_error([&] {
      Params params("learn", {{key, value, ""}});
      TrainingOptions::read(params, {});
    });
  };
  EXPECT_EQ(refusal("steps", "0"), "learn: steps = 0: expected at least 1");
  EXPECT_EQ(refusal("steps", "10"), "learn: steps = 10: expected more than the warm-up's 10");
  EXPECT_EQ(refusal("batch", "0"), "learn: batch = 0: expected at least 1");
  EXPECT_EQ(refusal("rate", "0"), "learn: rate = 0: expected a number above 0");
  EXPECT_EQ(refusal("clip", "-1"), "learn: clip = -1: expected a number of at least 0");
  EXPECT_EQ(refusal("schedule", "linear"), "learn: schedule = linear: expected cosine | constant");
}

}  // namespace
}  // namespace kv
