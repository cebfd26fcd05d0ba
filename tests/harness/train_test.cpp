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
#include "tests/support/run_fixture.h"

namespace kv {
namespace {

constexpr int kSteps = 6;

class Train : public RunFixture {
 protected:
  Train() { write_atomically(spec_file(), yaml()); }

  static std::string yaml() {
    return "# Does it learn?\nmodel: " + ref::source_path("tests/data/llama") +
           "\n"
           "protocol: train\n"
           "data: [{name: noise, ids: ids.safetensors, tokens: 48}]\n"
           "policies: [foresight-kv]\n"
           "learn: {steps: 6, batch: 2, budget: 24, interval: 12, warm_up: 1}\n"
           "samples: 3\n"
           "seed: 5\n"
           "tables: []\n";
  }
  RunOptions options(const std::string& out) const {
    RunOptions options = RunFixture::options(out);
    options.weights = folder_ / out;
    options.checkpoint_seconds = 0;  // after every step
    return options;
  }
  std::filesystem::path weights_of(const std::string& out) const { return folder_ / out / "foresight-kv.safetensors"; }
  // Without what says when and where they were made.
  std::map<std::string, std::vector<float>> tensors_of(const std::string& out) const {
    const SafetensorsFile file = SafetensorsFile::open(weights_of(out));
    std::map<std::string, std::vector<float>> tensors;
    for (const TensorInfo& tensor : file.tensors()) tensors[tensor.name] = file.read_f32(tensor);
    return tensors;
  }
  std::string refusal(const std::vector<std::string>& overrides) const {
    return refusal(overrides, options("refused"));
  }
  std::string refusal(const std::vector<std::string>& overrides, const RunOptions& options) const {
    const std::string message = test::user_error([&] { train(spec(overrides), options); });
    return message.starts_with(spec_file().string()) ? message.substr(spec_file().string().size()) : message;
  }
  // Of a second stage that goes on from these weights.
  static std::vector<std::string> reinforced(const std::filesystem::path& start) {
    return {"learn.stage=reinforced", "learn.start=" + start.string(), "learn.group=2", "learn.schedule=constant"};
  }
  std::vector<std::filesystem::path> checkpoints_of(const std::string& out) const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / out / "checkpoints")) {
      files.push_back(entry.path());
    }
    return files;
  }
  RunOptions fresh(const std::string& out) const {
    RunOptions fresh = options(out);
    fresh.start = Start::kFresh;
    return fresh;
  }
  // The same results, the weights in another folder.
  RunOptions elsewhere(const std::string& out, const std::string& weights) const {
    RunOptions elsewhere = options(out);
    elsewhere.weights = folder_ / weights;
    return elsewhere;
  }
  nlohmann::json made_of(const std::string& out) const {
    return nlohmann::json::parse(SafetensorsFile::open(weights_of(out)).metadata().at("made"));
  }
  void write_ids(const std::string& name, int64_t count) const {
    const std::vector<int32_t> ids(static_cast<size_t>(count), 7);
    const std::vector<TensorData> tensors = {
        {.name = "input_ids", .dtype = Dtype::kI32, .shape = {count}, .data = ids.data()}};
    write_safetensors(folder_ / name, tensors);
  }
};

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

// Of a model that comes with weights, as those of this repository do: they stay, whoever trains the like again.
class TrainAShippedModel : public Train {
 protected:
  TrainAShippedModel() {
    std::filesystem::copy(ref::source_path("tests/data/llama"), model(), std::filesystem::copy_options::recursive);
    RunOptions first = beside("first");
    train(spec(of_model()), first);
    shipped_ = test::read_file(shipped());
  }
  std::filesystem::path model() const { return folder_ / "model"; }
  std::filesystem::path shipped() const { return model() / "learned/foresight-kv.safetensors"; }
  std::filesystem::path beside_of(const std::string& out) const {
    return folder_ / out / "learned/foresight-kv.safetensors";
  }
  std::vector<std::string> of_model(const std::string& margin = "0.01") const {
    return {"model=" + model().string(), "learn.margin=" + margin};
  }
  // Weights of a name of their own, whose place is free.
  std::vector<std::string> of_mine(const std::string& margin) const {
    std::vector<std::string> overrides = of_model(margin);
    overrides.emplace_back("policies=[{policy: foresight-kv, weights: mine}]");
    return overrides;
  }
  std::filesystem::path mine() const { return model() / "learned/mine.safetensors"; }
  RunOptions beside(const std::string& out) const {
    RunOptions options = Train::options(out);
    options.weights.clear();
    options.keeps_beside = true;
    return options;
  }
  // As beside, but for a kill after the first step.
  RunOptions stopping(const std::string& out) const {
    RunOptions stopping = beside(out);
    stopping.after_case = [] { throw std::runtime_error("stopped"); };
    return stopping;
  }
  void expect_shipped_stays() const { EXPECT_EQ(test::read_file(shipped()), shipped_); }
  static nlohmann::json origin_of(const std::filesystem::path& file) {
    return nlohmann::json::parse(SafetensorsFile::open(file).metadata().at("made"));
  }

  std::string shipped_;
};

TEST_F(TrainAShippedModel, PutsWhatItLearnsIntoItsResults) {
  EXPECT_FALSE(std::filesystem::exists(beside_of("first"))) << "its place was free";
  const RunSummary summary = train(spec(of_model("0.5")), beside("again"));
  EXPECT_EQ(summary.weights, std::vector{beside_of("again")});
  EXPECT_EQ(origin_of(beside_of("again"))["learn"]["margin"], "0.5");
  expect_shipped_stays();
  // Started again it is done; another one finds that place taken, too.
  const auto written = std::filesystem::last_write_time(beside_of("again"));
  EXPECT_EQ(train(spec(of_model("0.5")), beside("again")).reused, kSteps);
  EXPECT_EQ(std::filesystem::last_write_time(beside_of("again")), written);
  const std::string message = refusal(of_model("0.25"), beside("again"));
  EXPECT_NE(message.find("would write over weights that were learned otherwise, " + beside_of("again").string()),
            std::string::npos)
      << message;
  expect_shipped_stays();
}

TEST_F(TrainAShippedModel, GoesOnThereAfterAKill) {
  EXPECT_THROW(train(spec(of_model("0.5")), stopping("killed")), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(beside_of("killed")));
  EXPECT_EQ(train(spec(of_model("0.5")), beside("killed")).reused, 1);
  EXPECT_EQ(origin_of(beside_of("killed"))["learn"]["margin"], "0.5");
  expect_shipped_stays();
}

TEST_F(TrainAShippedModel, ThatIsKilledWithWeightsOfItsOwnWritesOverNobodysWithout) {
  RunOptions told = stopping("killed");
  told.weights = folder_ / "told";
  EXPECT_THROW(train(spec(of_model("0.5")), told), std::runtime_error);
  EXPECT_EQ(train(spec(of_model("0.5")), beside("killed")).weights, std::vector{beside_of("killed")});
  expect_shipped_stays();
}

TEST_F(TrainAShippedModel, GoesWhereItIsToldToAfterItWentToItsResults) {
  for (const bool is_killed : {false, true}) {
    const std::string out = is_killed ? "killed" : "done";
    if (is_killed) {
      EXPECT_THROW(train(spec(of_model("0.5")), stopping(out)), std::runtime_error);
    } else {
      train(spec(of_model("0.5")), beside(out));
    }
    RunOptions told = beside(out);
    told.weights = folder_ / ("told-" + out);
    EXPECT_EQ(train(spec(of_model("0.5")), told).weights, std::vector{told.weights / "foresight-kv.safetensors"});
    EXPECT_TRUE(std::filesystem::exists(told.weights / "foresight-kv.safetensors"));
    expect_shipped_stays();
  }
}

// As `kvlab run --stale` does, whose result would describe other weights than those that policies read.
TEST_F(TrainAShippedModel, DoesNotGoOnInItsResultsForWhoAsksNobody) {
  EXPECT_THROW(train(spec(of_model("0.5")), stopping("killed")), std::runtime_error);
  RunOptions plain = beside("killed");
  plain.keeps_beside = false;
  EXPECT_NE(refusal(of_model("0.5"), plain)
                .find("would write over weights that were learned otherwise, " + shipped().string()),
            std::string::npos);
  expect_shipped_stays();
}

TEST_F(TrainAShippedModel, PutsNoTwoFilesIntoOnePlaceOfItsResults) {
  const std::filesystem::path first = folder_ / "a/x.safetensors", second = folder_ / "b/x.safetensors";
  const std::vector<std::string> two = {"model=" + model().string(),
                                        "policies=[{policy: foresight-kv, label: a, weights: " + first.string() +
                                            "}, {policy: foresight-kv, label: b, weights: " + second.string() + "}]"};
  train(spec(two), beside("two"));
  const std::string before = test::read_file(first);
  std::vector<std::string> others = two;
  others.emplace_back("learn.margin=0.5");
  const std::string message = refusal(others, beside("others"));
  EXPECT_NE(message.find("policy 'b' would write over the weights of 'a', "), std::string::npos) << message;
  EXPECT_EQ(test::read_file(first), before);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "others/learned/x.safetensors"));
}

// The place was free when both began, and the other was taught otherwise, or alike by other texts.
TEST_F(TrainAShippedModel, WritesOverNothingThatCameWhileItWasKilled) {
  for (const char* other : {"learn.margin=0.25", "samples=2"}) {
    SCOPED_TRACE(other);
    std::filesystem::remove(mine());
    const std::string out = other;
    EXPECT_THROW(train(spec(of_mine("0.5")), stopping(out)), std::runtime_error);
    std::vector<std::string> of_other = of_mine("0.5");
    of_other.emplace_back(other);
    train(spec(of_other), beside("other " + out));
    const std::string theirs = test::read_file(mine());
    RunOptions plain = beside(out);
    plain.keeps_beside = false;
    EXPECT_NE(refusal(of_mine("0.5"), plain).find("would write over weights"), std::string::npos);
    EXPECT_EQ(train(spec(of_mine("0.5")), beside(out)).weights,
              std::vector{folder_ / out / "learned/mine.safetensors"});
    EXPECT_EQ(test::read_file(mine()), theirs);
  }
}

TEST_F(TrainAShippedModel, WritesOverNothingThatCameWhileItRan) {
  RunOptions running = beside("running");
  running.after_case = [&] {
    if (!std::filesystem::exists(mine())) std::filesystem::copy_file(shipped(), mine());
  };
  EXPECT_NE(
      refusal(of_mine("0.5"), running).find("would write over weights that were learned otherwise, " + mine().string()),
      std::string::npos);
  EXPECT_EQ(test::read_file(mine()), shipped_);
  const RunSummary again = train(spec(of_mine("0.5")), beside("running"));
  EXPECT_EQ(again.reused, kSteps) << "nothing was lost";
  EXPECT_EQ(again.weights, std::vector{folder_ / "running/learned/mine.safetensors"});
}

// As its checkpoint before the writing has it, which has all steps.
TEST_F(TrainAShippedModel, GoesOnAfterAKillAroundTheWritingOfItsWeights) {
  for (const bool has_weights : {true, false}) {
    SCOPED_TRACE(has_weights);
    const std::string out = has_weights ? "after" : "before";
    std::filesystem::remove(mine());
    train(spec(of_mine("0.5")), beside(out));
    const std::string learned = test::read_file(mine());
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / out / "checkpoints")) {
      Checkpoint checkpoint = read_checkpoint(entry.path()).value();
      EXPECT_TRUE(std::exchange(checkpoint.has_written, false));
      write_checkpoint(entry.path(), checkpoint);
    }
    if (!has_weights) std::filesystem::remove(mine());
    const RunSummary again = train(spec(of_mine("0.5")), beside(out));
    EXPECT_EQ(again.reused, kSteps);
    EXPECT_EQ(again.weights, std::vector{mine()});
    EXPECT_TRUE(!has_weights || test::read_file(mine()) == learned) << "its date, too";
  }
}

TEST_F(TrainAShippedModel, SaysBeforeTheFirstStepThatItsPlaceIsNoFile) {
  std::filesystem::create_directories(beside_of("again"));
  RunOptions none = beside("again");
  none.after_case = [] { FAIL() << "a step was made"; };
  EXPECT_NE(refusal(of_model("0.5"), none).find(beside_of("again").string()), std::string::npos);
  expect_shipped_stays();
}

TEST_F(TrainAShippedModel, WritesOverItsWeightsWithFreshAlone) {
  RunOptions plain = beside("plain");
  plain.keeps_beside = false;
  EXPECT_NE(refusal(of_model("0.5"), plain).find("would write over weights that were learned otherwise, "),
            std::string::npos);
  expect_shipped_stays();
  RunOptions fresh = beside("fresh");
  fresh.start = Start::kFresh;
  EXPECT_EQ(train(spec(of_model("0.5")), fresh).weights, std::vector{shipped()});
  EXPECT_EQ(origin_of(shipped())["learn"]["margin"], "0.5");
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
