#include "harness/auto_batch.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "harness/protocols/protocol.h"
#include "harness/spec/grid.h"
#include "harness/subject.h"
#include "tests/support/backends.h"
#include "tests/support/run_fixture.h"

namespace kv {
namespace {

TEST(LargestBatch, IsAPowerOfTwoWhoseBytesAreHalfOfTheDevicesAtMost) {
  const auto linear = [](int samples) { return size_t{100} * static_cast<size_t>(samples); };
  EXPECT_EQ(largest_batch(1600, linear), 8);
  EXPECT_EQ(largest_batch(1599, linear), 4);
  EXPECT_EQ(largest_batch(1000000, linear), 16) << "more was never measured to be faster";
  EXPECT_EQ(largest_batch(10, linear), 1) << "one at least: its case says that it does not fit";
}

// What the spec's protocol counts with is no less than what a run of so many samples really takes.
class AutoBatch : public RunFixture {
 protected:
  static constexpr int kSamples = 3;

  void expect_bound(const std::string& text) {
    write_atomically(spec_file(), "# Enough?\nmodel: " + ref::source_path("experiments/models/reference") +
                                      "\nsamples: 3\ntables: []\n" + text);
    const Spec checked = spec();
    const Grid grid = make_grid(checked);
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    const std::unique_ptr<Subject> subject = open_subject(*backend, checked, 0, grid.models.front());
    const Workload& workload = grid.workloads.front();
    const UnitBatch batch{.backend = *backend,
                          .spec = checked,
                          .subject = *subject,
                          .needs = grid.needs,
                          .workload = workload,
                          .first = 0,
                          .count = kSamples};
    const size_t bound = checked.protocol->memory(batch)(kSamples);
    backend->reset_peak();
    const size_t before = backend->peak_bytes();
    const std::unique_ptr<UnitRunner> runner = checked.protocol->open(batch);
    std::vector<const Case*> cases;
    for (const Case& unit_case : workload.cases) cases.push_back(&unit_case);
    runner->begin(cases);
    for (const Case* unit_case : cases) EXPECT_FALSE(runner->run(*unit_case).empty());
    const size_t taken = backend->peak_bytes() - before;
    EXPECT_LE(taken, bound + bound / 4) << "what ops take for a moment is not counted";
    EXPECT_GE(taken, bound / 8) << "a bound of nothing like it";
  }
};

using AutoBatchSlow = AutoBatch;

TEST_F(AutoBatchSlow, CountsWithWhatAReplayTakes) {
  expect_bound(
      "data: [{task: reason, tokens: 256}]\npolicies: [full, golden, h2o, snapkv]\nmetrics: [loss, recall]\n"
      "axes: {budget: [64], interval: 32}\n");
}

TEST_F(AutoBatch, CountsWithWhatAnAnswerTakes) {
  expect_bound(
      "data: [{task: kv, tokens: 256, questions: 1}]\nprotocol: answer\npolicies: [full, snapkv, keydiff]\n"
      "axes: {keep: [0.5, 0.2]}\n");
}

TEST_F(AutoBatchSlow, CountsWithWhatAnAnswerFromAPrunedContextTakes) {
  expect_bound(
      "data: [{task: kv, tokens: 256, questions: 2}]\nprotocol: answer\npolicies: [full, h2o, r-kv]\n"
      "prefill_chunk: 32\naxes: {budget: [512, 128], interval: 96}\n");
}

// Where an interval is more than what else is read at once.
TEST_F(AutoBatch, CountsWithTheIntervalAsABlock) {
  expect_bound(
      "data: [{task: kv, tokens: 256, questions: 1}]\nprotocol: answer\npolicies: [full, {policy: h2o, allocation: "
      "ada}]\nprefill_chunk: 16\naxes: {budget: 128, interval: 120}\n");
}

TEST_F(AutoBatch, IsOneOnTheCpuAndStandsInTheManifest) {
  run_experiment(spec({"policies=[streaming]"}), options("auto"));
  run_experiment(spec({"policies=[streaming]", "batch=2"}), options("two"));
  const auto batch_of = [&](const char* out) {
    return nlohmann::json::parse(read_file(folder_ / out / "manifest.json"))["batch"];
  };
  EXPECT_EQ(batch_of("auto"), nlohmann::json::parse(R"({"auto": {"llama/noise/48 tokens": 1}})"));
  EXPECT_EQ(batch_of("two"), 2);
}

// A tiny model and a card: nothing limits the batch but what was measured to be of use.
TEST_F(AutoBatch, IsTheMostOnAnEmptyCardAndChangesNoCount) {
  if (!ref::try_backend("cuda")) GTEST_SKIP() << "cuda is not here";
  const std::vector<std::string> overrides = {"device=cuda", "policies=[streaming]"};
  const RunSummary summary = run_experiment(spec(overrides), options("auto"));
  EXPECT_EQ(summary.cases, 6);
  EXPECT_EQ(summary.skipped, 0);
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / "auto" / "manifest.json"))["batch"],
            nlohmann::json::parse(R"({"auto": {"llama/noise/48 tokens": 16}})"));
}

TEST_F(AutoBatch, FindsTheUnitsOfTheSameBatchInNumbers) {
  run_experiment(spec({"policies=[streaming]"}), options("a"));
  EXPECT_EQ(run_experiment(spec({"policies=[streaming]", "batch=1"}), options("a")).reused, 6);
  EXPECT_EQ(run_experiment(spec({"policies=[streaming]", "batch=3"}), options("a")).reused, 0);
}

}  // namespace
}  // namespace kv
