// Protocol train, from a spec to rows and weights, on the tiny Llama of tests/data.

#include "harness/train.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "harness/checkpoint.h"
#include "harness/run.h"
#include "harness/staleness.h"
#include "sim/io/hash.h"
#include "sim/io/safetensors.h"
#include "sim/learned/learned_file.h"
#include "tests/support/train_fixture.h"

namespace kv {
namespace {

TEST_F(Train, WritesACurveAStepAndTheWeights) {
  const RunSummary summary = train(spec(), options("out"));
  EXPECT_EQ(summary.cases, kSteps);
  EXPECT_EQ(summary.reused, 0);
  std::map<std::string, std::set<double>> steps;
  for (const Row& row : read_rows(folder_ / "out/rows.csv").rows) {
    EXPECT_TRUE(row.value) << row.skipped;
    EXPECT_EQ(row.policy, "foresight-kv");
    steps[row.metric].insert(*row.x);
  }
  EXPECT_EQ(steps.size(), 4u);
  for (const char* metric : {"hinge_loss", "evicted_overlap", "learning_rate", "gradient_norm"}) {
    EXPECT_EQ(steps[metric], (std::set<double>{0, 1, 2, 3, 4, 5})) << metric;
  }
  EXPECT_EQ(tensors_of("out").size(), 4u);
}

// So that the curves of a spec without tables are all there.
TEST_F(Train, MeasuresWhatTheLearnerSays) {
  const auto measured = [&](const std::string& out) {
    std::set<std::string> names;
    for (const Row& row : read_rows(folder_ / out / "rows.csv").rows) names.insert(row.metric);
    return names;
  };
  const RunSummary supervised = train(spec(), options("first"));
  EXPECT_EQ(supervised.weights, std::vector<std::filesystem::path>{weights_of("first")});
  train(spec(reinforced(weights_of("first"))), options("second"));
  for (const std::string stage : {"supervised", "reinforced"}) {
    Policy policy = make_policy("foresight-kv", {});
    Params params("learn", {{.key = "stage", .text = stage}, {.key = "start", .text = "first"}});
    Learner& learner = *policy.scorer->learner();
    learner.read(params);
    std::set<std::string> expected = {"learning_rate", "gradient_norm"};
    for (const LearnedMeasure& measure : learner.measures()) expected.insert(measure.name);
    EXPECT_EQ(measured(stage == "supervised" ? "first" : "second"), expected);
  }
}

TEST_F(Train, OnceDoneIsNotDoneAgain) {
  train(spec(), options("out"));
  const std::string rows = rows_of("out");
  const auto tensors = tensors_of("out");
  const RunSummary again = run_experiment(spec(), options("out"));  // kvlab run does it, too
  EXPECT_EQ(again.reused, kSteps);
  EXPECT_EQ(rows_of("out"), rows);
  EXPECT_EQ(tensors_of("out"), tensors);
  EXPECT_EQ(train(spec(), fresh("out")).reused, 0);
  EXPECT_EQ(rows_of("out"), rows);
}

// Stopped after each of its checkpoints in turn, and gone on with: the same rows and weights.
TEST_F(Train, GoesOnWhereItWasStopped) {
  train(spec(), options("whole"));
  for (int attempt = 0; attempt < kSteps; ++attempt) {
    RunOptions stopping = options("pieces");
    stopping.after_case = [] { throw std::runtime_error("stopped"); };
    EXPECT_THROW(train(spec(), stopping), std::runtime_error) << attempt;
  }
  const RunSummary last = train(spec(), options("pieces"));
  EXPECT_EQ(last.reused, kSteps);
  EXPECT_EQ(rows_of("pieces"), rows_of("whole"));
  EXPECT_EQ(tensors_of("pieces"), tensors_of("whole"));
}

// What was trained with other settings, or on another seed's texts, is no part of this.
TEST_F(Train, LeavesOtherTrainingsCheckpointsAlone) {
  train(spec(), options("out"));
  EXPECT_EQ(train(spec({"learn.margin=0.5"}), elsewhere("out", "margin")).reused, 0);
  EXPECT_EQ(train(spec({"seed=6"}), elsewhere("out", "seed")).reused, 0);
  EXPECT_EQ(train(spec({"title=Other words"}), options("out")).reused, kSteps);
}

TEST_F(Train, ReinforcesWhatWasLearnedBefore) {
  train(spec(), options("first"));
  const std::vector<std::string> overrides = {"learn.stage=reinforced", "learn.start=" + weights_of("first").string(),
                                              "learn.group=3", "learn.schedule=constant", "learn.reward=all"};
  train(spec(overrides), options("second"));
  std::set<std::string> metrics;
  for (const Row& row : read_rows(folder_ / "second/rows.csv").rows) {
    metrics.insert(row.metric);
    if (row.metric == "kl" && *row.x == 0) {
      EXPECT_EQ(*row.value, 0);  // it begins where it is held to
    }
    if (row.metric == "kl" && *row.x == kSteps - 1) {
      EXPECT_GT(*row.value, 0);
    }
    if (row.metric == "reward_spread") {
      EXPECT_GT(*row.value, 0);  // rollouts of a text differ
    }
  }
  EXPECT_EQ(metrics, (std::set<std::string>{"reward", "reward_spread", "kl", "loss_increase", "learning_rate",
                                            "gradient_norm"}));
  EXPECT_NE(tensors_of("second"), tensors_of("first"));
}

// A reward that is always the same says nothing, and nothing is learned from it.
TEST_F(Train, LearnsNothingFromNoReward) {
  train(spec(), options("first"));
  train(spec({"learn.stage=reinforced", "learn.start=" + weights_of("first").string(), "learn.group=2",
              "learn.schedule=constant", "learn.reward=none"}),
        options("second"));
  EXPECT_EQ(tensors_of("second"), tensors_of("first"));
}

// Each point of the axes is a training of its own: other rows, other weights, and for one that stands alone the same.
TEST_F(Train, TrainsAtEveryPointOfTheAxes) {
  const RunSummary summary = train(spec({"axes={margin: [0.01, 0.5], training_seed: [5, 6]}"}), options("axes"));
  EXPECT_EQ(summary.cases, 4 * kSteps);
  const RowTable table = read_rows(folder_ / "axes/rows.csv");
  EXPECT_EQ(table.axes, (std::vector<std::string>{"margin", "training_seed"}));
  std::map<std::vector<std::string>, std::vector<double>> losses;
  for (const Row& row : table.rows) {
    if (row.metric == "hinge_loss") losses[row.axes].push_back(*row.value);
  }
  std::set<std::vector<double>> different;
  for (const auto& [point, values] : losses) different.insert(values);
  EXPECT_EQ(different.size(), 4u);
  for (const char* name : {"0.01-5", "0.01-6", "0.5-5", "0.5-6"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ / "axes" / fmt::format("foresight-kv-{}.safetensors", name))) << name;
  }
  train(spec(), options("alone"));  // seed 5, margin 0.01
  for (const Row& row : read_rows(folder_ / "alone/rows.csv").rows) {
    if (row.metric == "hinge_loss") {
      EXPECT_EQ(*row.value, (losses[{"0.01", "5"}][static_cast<size_t>(*row.x)]));
    }
  }
}

// Policies find the weights by name in the model's folder, or by path.
TEST_F(Train, MakesWeightsThatAPolicyReads) {
  train(spec(), options("out"));
  const std::string decode =
      test::replaced(RunFixture::yaml(), "policies: [full, streaming, h2o, random]",
                     "policies: [full, {policy: foresight-kv, weights: " + weights_of("out").string() + "}]");
  write_atomically(folder_ / "decode.yaml",
                   test::replaced(decode, "axes: {budget: [16, 24], interval: 8}", "axes: {budget: 24, interval: 12}"));
  const RunSummary summary = run_experiment(load_spec(folder_ / "decode.yaml"), RunFixture::options("decoded"));
  EXPECT_EQ(summary.cases, 6);
  EXPECT_EQ(summary.skipped, 0);
}

// A rate that no score survives: the draw needs an order of scores, and who asks for one learns where there is none.
TEST_F(Train, SaysWhereRolloutsDiverge) {
  train(spec(), options("first"));
  std::vector<std::string> overrides = reinforced(weights_of("first"));
  overrides.insert(overrides.end(), {"learn.reward=all", "learn.rate=1e38"});
  const std::string message = refusal(overrides);
  EXPECT_NE(message.find(": foresight-kv: step 1: foresight-kv: the score of entry "), std::string::npos) << message;
  EXPECT_NE(message.find(" in layer 0, KV head 0, is "), std::string::npos) << message;
  ASSERT_EQ(checkpoints_of("refused").size(), 1u);
  EXPECT_EQ(read_checkpoint(checkpoints_of("refused").front()).value().state.step, 1);
  EXPECT_FALSE(std::filesystem::exists(weights_of("refused")));
}

// Golden cuts then, and who looks on is looked at, too. The last good checkpoint stays.
TEST_F(Train, SaysWhereTheFirstStageDiverges) {
  const std::string message = refusal({"learn.rate=1e38"});
  EXPECT_NE(message.find(": foresight-kv: step "), std::string::npos) << message;
  EXPECT_NE(message.find(": foresight-kv: the score of entry "), std::string::npos) << message;
  EXPECT_NE(message.find(", KV head "), std::string::npos) << message;
  ASSERT_EQ(checkpoints_of("refused").size(), 1u);
  EXPECT_GE(read_checkpoint(checkpoints_of("refused").front()).value().state.step, 1);
  EXPECT_FALSE(std::filesystem::exists(weights_of("refused")));
}

// Weights are finite, or their file is refused; what is computed from them need not be.
TEST_F(Train, WeightsThatOverflowAreARowWithItsReasonHoweverIsDrawn) {
  train(spec(), options("out"));
  LearnedFile large = read_learned(weights_of("out"), "foresight-kv");
  std::ranges::fill(large.parameters, 3e38F);
  write_learned(weights_of("out"), large);
  for (const char* sampling : {"top2l", "multinomial", "top"}) {
    const std::string policy =
        fmt::format("{{policy: foresight-kv, sampling: {}, weights: {}}}", sampling, weights_of("out").string());
    const std::string decode = test::replaced(RunFixture::yaml(), "policies: [full, streaming, h2o, random]",
                                              "policies: [full, " + policy + "]");
    write_atomically(folder_ / "decode.yaml", test::replaced(decode, "axes: {budget: [16, 24], interval: 8}",
                                                             "axes: {budget: 24, interval: 12}"));
    const RunSummary summary = run_experiment(load_spec(folder_ / "decode.yaml"), RunFixture::options(sampling));
    EXPECT_EQ(summary.cases, 6);
    EXPECT_EQ(summary.skipped, 3);
    for (const Row& row : read_rows(folder_ / sampling / "rows.csv").rows) {
      if (row.policy == "full") continue;
      EXPECT_TRUE(row.skipped.starts_with("foresight-kv")) << sampling << ": " << row.skipped;
      EXPECT_NE(row.skipped.find(": the score of entry 0 of 36 in layer 0, KV head 0, is "), std::string::npos)
          << sampling << ": " << row.skipped;
    }
  }
}

TEST_F(Train, RefusesToWriteOverItsOwnWeights) {
  const std::string message =
      refusal({"policies=[foresight-kv, {policy: foresight-kv, inputs: attention, label: blind}]"});
  EXPECT_TRUE(message.ends_with("policy 'blind' would write over the weights of 'foresight-kv', " +
                                weights_of("refused").string() + "; expected another option 'weights' for each"))
      << message;
}

// Found before the first step, not after the last.
TEST_F(Train, RefusesAPlaceThatIsNoFile) {
  std::filesystem::create_directories(weights_of("refused"));
  EXPECT_EQ(refusal({}),
            weights_of("refused").string() + ": cannot create: it is a folder, expected a file or a new name");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "refused/checkpoints"));
}

TEST_F(Train, RefusesWhatCannotBeLearned) {
  EXPECT_EQ(refusal({"policies=[h2o]"}),
            "--set policies=[h2o]: policy 'h2o' under protocol train learns nothing, expected a slot with weights: "
            "wg-kv, foresight-kv … (docs/learning.md)");
  EXPECT_EQ(refusal({"data.noise.tokens=36"}),
            ":4:27: data: 'noise': tokens = 36: expected at least 37, or nothing is learned from it");
  EXPECT_EQ(refusal({"learn.budget=20"}),
            "--set learn.budget=20: learn: budget = 20: expected a multiple of the interval 12 that is above it");
  EXPECT_EQ(refusal({"learn.stage=reinforced"}),
            ": learn: start: stage reinforced goes on from weights, expected a name");
  EXPECT_EQ(refusal({"axes={budget: 36}"}),
            "--set axes={budget: 36}: axes: 'budget' is set by 'learn', too; expected one of them");
  EXPECT_EQ(refusal({"axes={margin: [0.1, much]}"}),
            "--set axes={margin: [0.1, much]}: learn: margin = much: expected a finite number");
  EXPECT_EQ(refusal({"data=[{name: noise, ids: " + ref::source_path("tests/data/llama/ids.safetensors") + "}]",
                     "axes={tokens: [48, 64]}"}),
            "--set axes={tokens: [48, 64]}: axes: 'tokens' changes the texts; protocol train expects another spec for "
            "others");
  EXPECT_EQ(refusal({"metrics=[loss]"}),
            "--set metrics=[loss]: metrics = a list: protocol train measures its steps, expected no such key");
  EXPECT_EQ(refusal({"batch=2"}),
            "--set batch=2: batch = 2: expected as an option of the key 'learn': texts of a step");
  EXPECT_TRUE(
      refusal({"learn.stepz=3"})
          .starts_with("--set learn.stepz=3: learn: stepz = 3: unknown option, did you mean 'steps'? (expected "));
}

// Its file would be another one afterwards, and what had been learned before would be lost.
TEST_F(Train, RefusesToWriteOverWhatItBeginsWith) {
  train(spec(), options("first"));
  const std::string before = test::read_file(weights_of("first"));
  const std::string message =
      refusal(reinforced(folder_ / "first/../first/foresight-kv.safetensors"), options("first"));
  EXPECT_TRUE(message.ends_with("policy 'foresight-kv' would write over what 'foresight-kv' begins with, " +
                                weights_of("first").string() + "; expected another option 'weights'"))
      << message;
  EXPECT_EQ(test::read_file(weights_of("first")), before);
}

TEST_F(Train, RefusesModelsThatWriteToOnePlace) {
  std::filesystem::copy(ref::source_path("tests/data/llama"), folder_ / "other");
  write_atomically(spec_file(), test::replaced(yaml(), "model: " + ref::source_path("tests/data/llama"),
                                               "model: [" + ref::source_path("tests/data/llama") + ", other]"));
  const std::string message = refusal({});
  EXPECT_TRUE(message.ends_with("policy 'foresight-kv' would write over the weights of 'foresight-kv' on llama, " +
                                weights_of("refused").string() +
                                "; expected a spec for each model, with another --weights or option 'weights'"))
      << message;
}

// Results state the SHA-256 of what they began with: a date is no reason for another one.
TEST_F(Train, LeavesAloneAFileThatHoldsWhatItLearned) {
  train(spec(), options("out"));
  const auto written = std::filesystem::last_write_time(weights_of("out"));
  const auto tensors = tensors_of("out");
  train(spec(), options("out"));
  train(spec(), fresh("out"));
  EXPECT_EQ(std::filesystem::last_write_time(weights_of("out")), written);
  write_atomically(weights_of("out"), "something else");
  train(spec(), options("out"));
  EXPECT_EQ(tensors_of("out"), tensors);
}

TEST_F(Train, WritesOverWhatWasLearnedOtherwiseOnlyWhereItIsToldTo) {
  train(spec(), options("out"));
  const auto tensors = tensors_of("out");
  const std::vector<std::string> other = {"learn.margin=0.5"};
  EXPECT_TRUE(refusal(other, options("out"))
                  .ends_with(": policy 'foresight-kv' would write over weights that were learned otherwise, " +
                             weights_of("out").string() +
                             "; expected another option 'weights', another --weights DIR, or --fresh"))
      << refusal(other, options("out"));
  EXPECT_EQ(tensors_of("out"), tensors);
  train(spec(other), fresh("out"));
  EXPECT_EQ(made_of("out")["learn"]["margin"], "0.5");
}

// As the oldest files are: any training would agree with one, and none is known to have written it.
TEST_F(Train, KeepsWeightsThatDoNotSayHowTheyWereLearned) {
  train(spec(), options("out"));
  LearnedFile silent = read_learned(weights_of("out"), "foresight-kv");
  silent.origin = R"({"commit": "abc"})";
  write_learned(weights_of("out"), silent);
  const std::string before = test::read_file(weights_of("out"));
  const std::string message = refusal({}, elsewhere("again", "out"));
  EXPECT_NE(message.find("would write over weights that were learned otherwise, "), std::string::npos) << message;
  EXPECT_EQ(test::read_file(weights_of("out")), before);
}

// What it would learn may be other numbers, on another machine or by other code, and results state those of the file.
TEST_F(Train, KeepsWhatAnotherRunHasLearnedInTheSameWay) {
  train(spec(), options("out"));
  const auto written = std::filesystem::last_write_time(weights_of("out"));
  EXPECT_TRUE(refusal({}, elsewhere("again", "out"))
                  .ends_with(": policy 'foresight-kv' would write over weights that another run has learned, " +
                             weights_of("out").string() +
                             "; expected another option 'weights', another --weights DIR, or --fresh"))
      << refusal({}, elsewhere("again", "out"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "again/checkpoints")) << "trained first";
  EXPECT_EQ(std::filesystem::last_write_time(weights_of("out")), written);
}

// Whose checkpoint has all steps has written its weights: others in their place were put there by somebody.
TEST_F(Train, KeepsWhatWasPutInPlaceOfItsOwn) {
  train(spec(), options("out"));
  LearnedFile other = read_learned(weights_of("out"), "foresight-kv");
  other.parameters.front() += 1;
  write_learned(weights_of("out"), other);
  const std::string message = refusal({}, options("out"));
  EXPECT_NE(message.find("would write over weights that another run has learned, "), std::string::npos) << message;
  EXPECT_EQ(read_learned(weights_of("out"), "foresight-kv").parameters, other.parameters);
}

// --fresh again would lose the steps that it has done.
TEST_F(Train, GoesOnWhereItWasToldToWriteOverOthers) {
  train(spec(), options("out"));
  const Spec other = spec({"learn.margin=0.5"});
  RunOptions stopping = fresh("out");
  stopping.after_case = [] { throw std::runtime_error("stopped"); };
  EXPECT_THROW(train(other, stopping), std::runtime_error);
  EXPECT_EQ(made_of("out")["learn"].value("margin", "none"), "none");
  EXPECT_EQ(train(other, options("out")).reused, 1);
  EXPECT_EQ(made_of("out")["learn"]["margin"], "0.5");
}

TEST_F(Train, ItsResultIsFreshUntilWhatItBeganWithChanges) {
  train(spec(), options("first"));
  const Spec second = spec(reinforced(weights_of("first")));
  train(second, options("second"));
  EXPECT_EQ(check_result(folder_ / "second", second).reasons, std::vector<std::string>{});
  const nlohmann::json manifest = nlohmann::json::parse(test::read_file(folder_ / "second/manifest.json"));
  EXPECT_EQ(manifest["profiles"].size(), 1u);
  train(spec({"learn.margin=0.5"}), fresh("first"));
  EXPECT_EQ(check_result(folder_ / "second", second).reasons,
            std::vector<std::string>{"inputs differ: profile llama/foresight-kv.safetensors"});
}

TEST_F(Train, ChecksEveryTrainingBeforeTheFirst) {
  train(spec(), options("first"));
  const std::vector<std::filesystem::path> before = checkpoints_of("first");
  const std::string missing = (folder_ / "missing.safetensors").string();
  const std::vector<std::string> overrides = {"learn.stage=reinforced",
                                              "axes={start: [" + weights_of("first").string() + ", " + missing + "]}"};
  EXPECT_EQ(refusal(overrides, fresh("first")),
            ": learn: foresight-kv: there are no learned weights " + missing + "; `kvlab train SPEC` makes one");
  EXPECT_EQ(checkpoints_of("first"), before);
  const std::string invalid = test::user_error([&] { validate_experiment(spec(overrides)); });
  EXPECT_NE(invalid.find("there are no learned weights"), std::string::npos) << invalid;
}

TEST_F(Train, StartsOverWithItsOwnCheckpointsAlone) {
  train(spec(), options("out"));
  train(spec({"learn.margin=0.5"}), fresh("out"));
  EXPECT_EQ(checkpoints_of("out").size(), 2u);
  EXPECT_EQ(train(spec(), elsewhere("out", "first")).reused, kSteps);
}

// An option is sound, or not, with what the axes set beside it.
TEST_F(Train, ReadsOptionsTogetherWithTheAxes) {
  const std::string learn = "learn={steps: 2, batch: 1, warm_up: 1, budget: 24}";
  EXPECT_EQ(train(spec({learn, "axes={interval: [12, 8]}"}), options("out")).cases, 4);
  EXPECT_EQ(refusal({learn, "axes={interval: [12, 7]}"}),
            "--set " + learn + ": learn: budget = 24: expected a multiple of the interval 7 that is above it");
  const std::filesystem::path start = folder_ / "out/foresight-kv-12.safetensors";
  EXPECT_EQ(train(spec({"learn.stage=reinforced", "learn.steps=2", "learn.group=2",
                        "axes={start: [" + start.string() + "]}"}),
                  options("second"))
                .cases,
            2);
}

TEST_F(Train, NamesFilesByPlainCharacters) {
  train(spec({"learn={steps: 2, batch: 1, warm_up: 1}", "axes={settings: [24/12, 24/12 24/8]}"}), options("out"));
  for (const char* name : {"24-12", "24-12-24-8"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ / "out" / fmt::format("foresight-kv-{}.safetensors", name))) << name;
  }
}

TEST_F(Train, SaysInTheFileWhatTrainedIt) {
  train(spec(), options("first"));
  EXPECT_EQ(made_of("first")["begun_from"], nlohmann::json::object());
  std::vector<std::string> overrides = reinforced(weights_of("first"));
  overrides.emplace_back("axes={training_seed: [7]}");
  train(spec(overrides), options("second"));
  std::filesystem::rename(folder_ / "second/foresight-kv-7.safetensors", weights_of("second"));
  const nlohmann::json made = made_of("second");
  EXPECT_EQ(made["learn"]["stage"], "reinforced");
  EXPECT_EQ(made["learn"]["training_seed"], "7");
  EXPECT_EQ(made["learn"]["budget"], "24");
  EXPECT_EQ(made["begun_from"]["foresight-kv.safetensors"], sha256_hex(test::read_file(weights_of("first"))));
  EXPECT_EQ(made_of("first")["learn"]["training_seed"], "5");  // the spec's
}

// Whichever step would have read it.
TEST_F(Train, RefusesATextThatIsTooShortBeforeTheFirstStep) {
  write_ids("short.safetensors", 20);
  const std::string message = refusal(
      {"data=[{name: noise, ids: ids.safetensors, tokens: 48}, {name: short, ids: short.safetensors, samples: 1}]"});
  EXPECT_TRUE(
      message.ends_with("data: 'short': text 0 has 20 tokens, expected at least 37, or nothing is learned from it"))
      << message;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "refused/checkpoints"));
  EXPECT_NE(refusal({"samples=4"}).find("sample 3 of 48 tokens needs 192"), std::string::npos);
}

TEST_F(Train, SaysWhatToDoWithACheckpointOfNoUse) {
  train(spec(), options("out"));
  const std::filesystem::path file = checkpoints_of("out").front();
  const std::string hint = "; remove it, or start over with --fresh";
  Checkpoint other = *read_checkpoint(file);
  other.state.parameters.push_back(0);
  const size_t count = other.state.parameters.size();
  other.state.adam.mean.push_back(0);
  other.state.adam.square.push_back(0);
  write_checkpoint(file, other);
  EXPECT_EQ(refusal({}, options("out")), fmt::format("{}: the checkpoint holds {} parameters, expected {}{}",
                                                     file.string(), count, count - 1, hint));
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  const std::string message = refusal({}, options("out"));
  EXPECT_TRUE(message.starts_with(file.string()) && message.ends_with(hint)) << message;
  EXPECT_EQ(train(spec(), fresh("out")).reused, 0);
}

TEST_F(Train, RemovesWhatAKilledWriteLeft) {
  train(spec(), options("out"));
  write_atomically(folder_ / "out/checkpoints/a.safetensors.1-0.tmp", "half of it");
  EXPECT_EQ(train(spec(), options("out")).reused, kSteps);
  EXPECT_EQ(checkpoints_of("out").size(), 1u);
}

}  // namespace
}  // namespace kv
