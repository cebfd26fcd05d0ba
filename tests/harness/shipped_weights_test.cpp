// Where a training writes what it learned: over nobody's weights, whatever is killed and whoever comes meanwhile.

#include "harness/checkpoint.h"
#include "tests/support/train_fixture.h"

namespace kv {
namespace {

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

}  // namespace
}  // namespace kv
