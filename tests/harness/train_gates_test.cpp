// Training what sits inside a model's attention, from a spec to rows, weights and the policy that reads them, on the
// tiny Llama of tests/data.

#include <fmt/format.h>

#include <set>

#include "harness/checkpoint.h"
#include "harness/run.h"
#include "harness/train.h"
#include "tests/support/training_run.h"

namespace kv {
namespace {

constexpr int kSteps = 4;

struct Method {
  std::string name;
  std::string policy;  // of a spec, with WEIGHTS where its weights are named
  std::set<std::string> measures;
  int diverges_at = 1;  // the step that sees the first numbers that are none
};

const Method kMethods[] = {
    {"wg_kv",
     "{policy: full, admission: {wg-kv: {window: 8, weights: WEIGHTS}}}",
     {"hidden_distance", "gate_sparsity", "admission_rate"}},
    {"duo",
     "{policy: full, admission: {duo: {sinks: 2, window: 8, weights: WEIGHTS}}}",
     {"hidden_distance", "mean_alpha"},
     2},  // of an infinite parameter α is 0 or 1, but its next step is no number
    {"retention",
     "{policy: retention, hidden: 8, bias: 3, weights: WEIGHTS}",
     {"divergence", "next_token_loss", "capacity_excess", "overfull"}},
};

std::ostream& operator<<(std::ostream& out, const Method& method) { return out << method.name; }

class TrainGates : public TrainingRun, public testing::WithParamInterface<Method> {
 protected:
  TrainGates() : TrainingRun("mine") { write_spec(GetParam().policy); }

  void write_spec(const std::string& policy) const {
    write_atomically(spec_file(), yaml(test::replaced(policy, "WEIGHTS", "mine"), "steps: 4, batch: 2, warm_up: 1"));
  }
  std::string refusal(const std::vector<std::string>& overrides) const {
    return test::user_error([&] { train(spec(overrides), options("refused")); });
  }
  // A run of protocol decode with the method's policy, its weights those of `path`.
  RunSummary decode(const std::string& policy, const std::string& path) const {
    const std::string yaml = test::replaced(RunFixture::yaml(), "policies: [full, streaming, h2o, random]",
                                            "policies: [full, " + test::replaced(policy, "WEIGHTS", path) + "]");
    write_atomically(folder_ / "decode.yaml",
                     test::replaced(yaml, "axes: {budget: [16, 24], interval: 8}", "axes: {budget: 24, interval: 12}"));
    return run_experiment(load_spec(folder_ / "decode.yaml"), RunFixture::options("decoded"));
  }
};

TEST_P(TrainGates, WritesACurveAStepAndWeightsThatAPolicyReads) {
  EXPECT_EQ(train(spec(), options("out")).cases, kSteps);
  std::map<std::string, std::set<double>> steps;
  for (const Row& row : read_rows(folder_ / "out/rows.csv").rows) {
    ASSERT_TRUE(row.value) << row.metric << ": " << row.skipped;
    steps[row.metric].insert(*row.x);
  }
  std::set<std::string> expected = GetParam().measures;
  expected.insert({"learning_rate", "gradient_norm"});
  for (const auto& [metric, at] : steps) {
    EXPECT_TRUE(expected.contains(metric)) << metric;
    EXPECT_EQ(at, (std::set<double>{0, 1, 2, 3})) << metric;
  }
  EXPECT_EQ(steps.size(), expected.size());
  EXPECT_EQ(decode(GetParam().policy, weights_of("out").string()).skipped, 0);
}

// Stopped after each of its checkpoints in turn, and gone on with: the same rows and weights.
TEST_P(TrainGates, GoesOnWhereItWasStopped) {
  train(spec(), options("whole"));
  for (int attempt = 0; attempt < kSteps; ++attempt) {
    RunOptions stopping = options("pieces");
    stopping.after_case = [] { throw std::runtime_error("stopped"); };
    EXPECT_THROW(train(spec(), stopping), std::runtime_error) << attempt;
  }
  EXPECT_EQ(train(spec(), options("pieces")).reused, kSteps);
  EXPECT_EQ(rows_of("pieces"), rows_of("whole"));
  EXPECT_EQ(tensors_of("pieces"), tensors_of("whole"));
}

// A rate that no parameter survives: whoever reads of it learns where, and what had been learned before stays.
TEST_P(TrainGates, ThatDivergeSayWhere) {
  const int step = GetParam().diverges_at;
  const std::string message = refusal({"learn.rate=1e39", "learn.schedule=constant"});
  EXPECT_NE(message.find(fmt::format("step {}: layer 0, KV head 0: ", step)), std::string::npos) << message;
  int checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "refused/checkpoints")) {
    EXPECT_EQ(read_checkpoint(entry.path()).value().state.step, step);
    ++checkpoints;
  }
  EXPECT_EQ(checkpoints, 1);
  EXPECT_FALSE(std::filesystem::exists(weights_of("refused")));
}

using WindowedGates = TrainGates;

TEST_P(WindowedGates, RefuseTextsOfWhichNothingOutlivesTheWindow) {
  const std::string message = refusal({"data.noise.tokens=8"});
  EXPECT_NE(message.find("tokens = 8: expected at least "), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Runs, TrainGates, testing::ValuesIn(kMethods),
                         [](const auto& method) { return method.param.name; });

INSTANTIATE_TEST_SUITE_P(Runs, WindowedGates, testing::Values(kMethods[0], kMethods[1]),
                         [](const auto& method) { return method.param.name; });

using TrainOneSlot = TrainGates;

// Another slot would decide nothing in the training, and who reads the spec would think that it did.
TEST_P(TrainOneSlot, RefusesWhatHasNoPartInIt) {
  const auto of = [&](const std::string& policy) { return refusal({"policies=[" + policy + "]"}); };
  const std::string evicting = of("{policy: h2o, admission: {wg-kv: {window: 8, weights: mine}}}");
  EXPECT_NE(evicting.find("trains wg-kv, in which policy 'h2o' has no part, expected full"), std::string::npos)
      << evicting;
  const std::string admitting = of("{policy: retention, admission: local, weights: mine}");
  EXPECT_NE(admitting.find("trains retention, in which admission 'local' has no part, expected none"),
            std::string::npos)
      << admitting;
  const std::string initial = of("{policy: full, admission: {wg-kv: {window: 8, weights: initial}}}");
  EXPECT_NE(initial.find("weights = initial are no file, expected another name to train"), std::string::npos)
      << initial;
}

// What decides only once gates are learned would be taken for what is learned.
TEST_P(TrainOneSlot, RefusesOptionsThatItDoesNotDependOn) {
  const auto of = [&](const std::string& policy) { return refusal({"policies=[" + policy + "]"}); };
  const std::string drop = of("{policy: full, admission: {wg-kv: {window: 8, drop: 0.5, weights: mine}}}");
  EXPECT_NE(drop.find("under protocol train trains wg-kv, which does not depend on its option 'drop', expected no such "
                      "option"),
            std::string::npos)
      << drop;
  for (const char* policy :
       {"{policy: full, admission: {wg-kv: {window: 8, sinks: 2, weights: mine}}}",
        "{policy: full, admission: {duo: {window: 8, retrieval: 0.25, weights: mine}}}",
        "{policy: retention, horizon: 8, weights: mine}", "{policy: retention, age_offset: 2, weights: mine}",
        "{policy: foresight-kv, sampling: top, weights: mine}"}) {
    EXPECT_NE(of(policy).find("which does not depend on its option '"), std::string::npos) << of(policy);
  }
  const std::string axis = refusal({"axes={wg-kv.drop: [0, 0.5]}"});
  EXPECT_NE(axis.find("does not depend on its option 'drop'"), std::string::npos) << axis;
}

// Policies that differ in what is admitted alone: neither goes on from the other's checkpoint.
TEST_P(TrainOneSlot, KnowsTheTrainingsOfASpecApart) {
  const std::string both =
      "{policy: full, admission: {wg-kv: {window: 8, weights: gates}}, label: gates}, "
      "{policy: full, admission: {duo: {sinks: 2, window: 8, weights: alphas}}, label: alphas}";
  const RunSummary summary = train(spec({"policies=[" + both + "]"}), options("both"));
  EXPECT_EQ(summary.cases, 2 * kSteps);
  EXPECT_EQ(summary.reused, 0);
  for (const char* name : {"gates", "alphas"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_ / "both" / (std::string(name) + ".safetensors"))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, TrainOneSlot, testing::Values(kMethods[0]),
                         [](const auto& method) { return method.param.name; });

}  // namespace
}  // namespace kv
