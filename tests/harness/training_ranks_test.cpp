// Several processes that mpirun starts share a training: what they learn is what one learns, whoever is killed
// meanwhile.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "harness/files.h"
#include "sim/io/safetensors.h"
#include "sim/tasks/random.h"
#include "tests/support/launched_ranks.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class TrainingRanksSlow : public test::LaunchedRanks {
 protected:
  void write_spec(const std::string& learning) const {
    test::write_file(path("train.yaml"), "model: " + path("model") +
                                             "\nprotocol: train\ndata: [{name: noise, task: reason, tokens: 96}]\n"
                                             "samples: 5\nseed: 5\ntables: []\n" +
                                             learning);
  }
  // What the second stage of ForesightKV goes on from.
  void train_base() const {
    write_spec(
        "policies: [{policy: foresight-kv, weights: base}]\nlearn: {steps: 2, batch: 2, budget: 40, interval: 8, "
        "warm_up: 1}\n");
    const pid_t child = ref::start_kvlab({"train", "--quiet", "--no-draw", "--out", path("base"), path("train.yaml")});
    ASSERT_EQ(code_of(child), 0);
  }
  std::string train(const std::string& out) const {
    return fmt::format("exec '{0}' train --quiet --no-draw --checkpoint 0 --weights '{1}' --out '{1}' '{2}'",
                       ref::binary_path(), out, path("train.yaml"));
  }
  // Of all that was learned.
  static std::vector<float> parameters_in(const std::string& out) {
    std::vector<float> parameters;
    for (const fs::directory_entry& entry : fs::directory_iterator(out)) {
      if (entry.path().extension() != ".safetensors") continue;
      const SafetensorsFile file = SafetensorsFile::open(entry.path());
      for (const TensorInfo& tensor : file.tensors()) {
        const std::vector<float> values = file.read_f32(tensor);
        parameters.insert(parameters.end(), values.begin(), values.end());
      }
    }
    return parameters;
  }
};

constexpr const char* kGates =
    "policies: [{policy: full, admission: {wg-kv: {window: 8, weights: mine}}}]\nlearn: {steps: 6, batch: 4}\n";

// Of a method each: what is in a step's parts alone, and what asks for a sum in between.
class RanksOfAMethodSlow : public TrainingRanksSlow, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    TrainingRanksSlow::SetUp();
    if (IsSkipped()) return;
    const std::string learning = GetParam();
    if (learning.find("start: base") != learning.npos) train_base();
    write_spec(learning);
  }
};

// Within what rounding makes of a few of Adam's steps.
TEST_P(RanksOfAMethodSlow, LearnWhatOneProcessLearns) {
  const std::string one = path("alone");
  ASSERT_EQ(code_of(start(1, train(one), path("messages"))), 0);
  const std::vector<float> expected = parameters_in(one);
  ASSERT_FALSE(expected.empty());
  const RowTable rows = read_rows(fs::path(one) / "rows.csv");
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    const std::string out = path(fmt::format("by{}", ranks));
    ASSERT_EQ(code_of(start(ranks, train(out), path("messages"))), 0);
    const std::vector<float> parameters = parameters_in(out);
    ASSERT_EQ(parameters.size(), expected.size());
    double difference = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference = std::max(difference, std::abs(double{parameters[i]} - expected[i]));
      size = std::max(size, std::abs(double{expected[i]}));
    }
    EXPECT_LE(difference, 1e-4 * size);
    const RowTable measured = read_rows(fs::path(out) / "rows.csv");
    ASSERT_EQ(measured.rows.size(), rows.rows.size());
    for (size_t i = 0; i < rows.rows.size(); ++i) {
      EXPECT_EQ(measured.rows[i].metric, rows.rows[i].metric);
      const double value = rows.rows[i].value.value();
      EXPECT_NEAR(measured.rows[i].value.value(), value, 1e-4 * (1 + std::abs(value))) << rows.rows[i].metric;
    }
  }
}

// Killed as a whole or in part, and gone on with by another number of ranks.
TEST_P(RanksOfAMethodSlow, GoOnFromTheirCheckpoint) {
  const std::string one = path("alone"), out = path("killed");
  using Clock = std::chrono::steady_clock;
  ASSERT_EQ(code_of(start(1, train(one), path("messages"))), 0);
  const auto begin = Clock::now();
  ASSERT_EQ(code_of(start(4, train(path("whole")), path("messages"))), 0);
  const auto duration = Clock::now() - begin;
  Random random(19, 0);
  int killed = 0;
  const auto checkpoint = [&] {
    auto newest = fs::file_time_type::min();
    std::error_code error;
    for (fs::directory_iterator file(out + "/checkpoints", error), end; !error && file != end; file.increment(error)) {
      if (file->path().extension() == ".safetensors") newest = std::max(newest, file->last_write_time(error));
    }
    return newest;
  };
  const auto has_begun = [&] { return checkpoint() != fs::file_time_type::min(); };
  for (int i = 0; (killed < 3 || !has_begun()) && i < 40; ++i) {
    const auto before = checkpoint();
    const auto started = Clock::now();
    const pid_t launcher = start(1 << random.below(3), train(out), path("messages"));
    // At any moment, but most of the time of so short a training is the launcher's: as a rule after a checkpoint.
    auto moment = duration * random.uniform();
    if (random.below(3) > 0) {
      while (checkpoint() == before && !has_ended(launcher) && Clock::now() - started < 2 * duration) {
        std::this_thread::sleep_for(1ms);
      }
      moment /= 100;
    }
    std::this_thread::sleep_for(std::chrono::duration_cast<Clock::duration>(moment));
    const std::vector<pid_t> children = children_of(launcher);
    if (!children.empty()) ::kill(children[random.below(children.size())], SIGKILL);
    if (code_after_kill(launcher) == 0) {  // done before its time: nothing is left to go on with
      fs::remove_all(out);
      continue;
    }
    ++killed;
  }
  ASSERT_GE(killed, 3);
  ASSERT_TRUE(has_begun());
  std::string last = train(out);
  last.erase(last.find(" --quiet"), std::string(" --quiet").size());
  ASSERT_EQ(code_of(start(2, last, path("messages"))), 0);
  const std::string said = read_file(path("messages"));
  EXPECT_NE(said.find(" from an earlier start)"), std::string::npos) << said;
  EXPECT_EQ(said.find("(0 from an earlier start)"), std::string::npos) << said;
  const std::vector<float> expected = parameters_in(one), parameters = parameters_in(out);
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(parameters[i], expected[i], 1e-4 * (1 + std::abs(expected[i]))) << i;
  }
}

// Each would add up gradients of its own model or texts.
TEST_F(TrainingRanksSlow, NeedTheSameInputs) {
  write_spec(kGates);
  for (const char* rank : {"rank0", "rank1"}) {
    fs::create_directories(path(rank));
    fs::copy(path("model"), path(rank) + "/own", fs::copy_options::recursive);
  }
  test::write_file(path("rank1/own/config.json"), read_file(path("rank0/own/config.json")) + "\n");
  const std::string command = fmt::format("cd {}/rank$OMPI_COMM_WORLD_RANK && {} --set model=own",
                                          folder_.path().string(), train(path("apart")));
  EXPECT_EQ(code_of(start(2, command, path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u) << testing::PrintToString(messages());
  EXPECT_NE(messages()[0].find("inputs of the training differ"), std::string::npos) << messages()[0];
}

// The first rank alone writes, so that it alone looks at what lies where its model is: here another's weights, which
// stay.
TEST_F(TrainingRanksSlow, MayHaveTheirModelsAtOtherPaths) {
  write_spec(kGates);
  for (const char* rank : {"rank0", "rank1"}) {
    fs::create_directories(path(rank));
    fs::copy(path("model"), path(rank) + "/own", fs::copy_options::recursive);
  }
  const auto train_apart = [&](const std::string& out, const std::string& lambda) {
    return code_of(
        start(2,
              fmt::format("cd {}/rank$OMPI_COMM_WORLD_RANK && exec '{}' train --quiet --no-draw --out '{}' "
                          "'{}' --set model=own --set learn.lambda={}",
                          folder_.path().string(), ref::binary_path(), path(out), path("train.yaml"), lambda),
              path("messages")));
  };
  ASSERT_EQ(train_apart("first", "0.1"), 0);
  const std::string theirs = read_file(path("rank0/own/learned/mine.safetensors"));
  ASSERT_EQ(train_apart("again", "0.2"), 0);
  EXPECT_EQ(read_file(path("rank0/own/learned/mine.safetensors")), theirs);
  EXPECT_FALSE(parameters_in(path("again/learned")).empty());
  EXPECT_FALSE(fs::exists(path("rank1/own/learned")) && !fs::is_empty(path("rank1/own/learned")));
}

TEST_F(TrainingRanksSlow, NeedATextEach) {
  write_spec(kGates);
  EXPECT_EQ(code_of(start(2, train(path("few")) + " --set learn.batch=1", path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u) << testing::PrintToString(messages());
  EXPECT_NE(messages()[0].find("the 1 texts of a step are divided over 2 ranks"), std::string::npos) << messages()[0];
}

constexpr const char* kSecondStage =
    "policies: [foresight-kv]\n"
    "learn: {stage: reinforced, start: base, steps: 6, batch: 4, group: 3, budget: 40, interval: 8, warm_up: 1}\n";

constexpr const char* kLearning[] = {
    kGates, "policies: [{policy: retention, hidden: 8, weights: mine}]\nlearn: {steps: 6, batch: 4, entries: 8}\n",
    "policies: [{policy: full, admission: {duo: {sinks: 2, window: 8, weights: mine}}}]\nlearn: {steps: 6, batch: 4}\n",
    "policies: [foresight-kv]\nlearn: {steps: 6, batch: 4, budget: 40, interval: 8, warm_up: 1}\n", kSecondStage};

std::string method_of(const testing::TestParamInfo<const char*>& spec) {
  constexpr const char* kNames[] = {"wg_kv", "retention", "duo", "foresight_kv", "foresight_kv_reinforced"};
  return kNames[spec.index];
}

INSTANTIATE_TEST_SUITE_P(Methods, RanksOfAMethodSlow, testing::ValuesIn(kLearning), method_of);

}  // namespace
}  // namespace kv
