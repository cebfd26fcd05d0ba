#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/support/run_fixture.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

// The same experiments on a GPU as on the CPU make the same rows there: policies that score by themselves, and metrics
// of heads and tokens that stand fast (top_increases lists tokens, whose order rounding changes).
class SlowRunOnCuda : public RunFixture, public testing::WithParamInterface<std::string> {
 protected:
  // Rows by everything but the value; without timings, bytes (of 16-bit entries), the maps of the clearest heads, which
  // may be others, and what goes on behind an answer.
  using Rows = std::map<std::string, Row>;

  Rows run(const std::string& device, const std::string& text, const std::string& of_task, int samples) const {
    write_atomically(spec_file(), "# The same?\nmodel: " + ref::source_path("experiments/models/reference") +
                                      "\ndata: [{task: reason, tokens: 768" + of_task + "}]\nsamples: " +
                                      std::to_string(samples) + "\ntables: []\ndevice: " + device + "\n" + text);
    const RunSummary summary = run_experiment(spec(), options(device));
    EXPECT_EQ(summary.failed, 0);
    Rows rows;
    for (const Row& row : read_rows(folder_ / device / "rows.csv").rows) {
      if (is_timing(row.metric) || row.unit == "bytes" || row.metric.starts_with("attention_map_")) continue;
      if (row.metric == "repetition_rate") continue;
      std::string key = row.policy + " " + row.metric + " sample " + std::to_string(row.sample.value_or(-1));
      if (row.layer) key += " layer " + std::to_string(*row.layer);
      if (row.head) key += " head " + std::to_string(*row.head);
      if (row.x) key += " x " + std::to_string(*row.x);
      for (const std::string& axis : row.axes) key += " " + axis;
      EXPECT_TRUE(rows.emplace(key, row).second) << key << " stands there twice";
    }
    return rows;
  }

  // Counts are exact. Values move with the roundings of bf16, which also turn what nearly ties: on the CPU noise of
  // half a unit in the last place of every weight, about as much, moves these rows by up to 1.2 % under the full cache
  // and 6 % under a policy, of the value or a half, whichever is larger.
  // The next word of a greedy answer may be a near tie, which roundings decide: of policies all answers together are
  // compared (expect_same_sums).
  static void expect_same(const Row& cpu, const Row& cuda, bool are_answers) {
    const std::set<std::string> of_words = {"answer", "accuracy", "answer_tokens", "truncation_rate"};
    EXPECT_EQ(cpu.skipped, cuda.skipped);
    ASSERT_EQ(cpu.value.has_value(), cuda.value.has_value());
    if (!cpu.value) return;
    if (are_answers && cpu.policy != "full" && of_words.contains(cpu.metric)) return;
    const std::set<std::string> counts = {"kept_tokens",    "predicted_tokens", "answer_tokens", "evictions",
                                          "attended_pairs", "cache_size",       "admission_rate"};
    const double tolerance = cpu.policy == "full" ? 0.03 : 0.15;
    if (counts.contains(cpu.metric)) {
      EXPECT_EQ(*cpu.value, *cuda.value);
    } else {
      EXPECT_NEAR(*cpu.value, *cuda.value, tolerance * std::max(std::abs(*cpu.value), 0.5));
    }
  }

  // Small values, too: of each policy's metric the errors of all rows together, against its values together. The same
  // noise moves these sums by up to 0.2 % and 8 %, of metrics above a rounding of bf16.
  static void expect_same_sums(const Rows& cpu, const Rows& cuda) {
    constexpr double kRounding = 0x1p-8;
    struct Sums {
      double error = 0, values = 0;
      int rows = 0;
    };
    std::map<std::pair<std::string, std::string>, Sums> all;
    for (const auto& [key, row] : cpu) {
      if (!row.value) continue;
      Sums& sums = all[{row.policy, row.metric}];
      sums.error += std::abs(*row.value - cuda.at(key).value.value());
      sums.values += std::abs(*row.value);
      ++sums.rows;
    }
    for (const auto& [name, sums] : all) {
      const double tolerance = name.first == "full" ? 0.03 : 0.3;
      // loss_increase* are ratios of losses less one: what noise moves, by 2.3 roundings on the CPU, is the ratio.
      const double noise =
          name.second.starts_with("loss_increase") ? 4 * kRounding * (sums.rows + sums.values) : kRounding * sums.rows;
      EXPECT_LE(sums.error, tolerance * sums.values + noise) << name.first << " " << name.second;
    }
  }

  void expect_same_rows(const std::string& text, const std::string& of_task = "", int samples = 1) const {
    const Rows cpu = run("cpu", text, of_task, samples), cuda = run(GetParam(), text, of_task, samples);
    EXPECT_EQ(cpu.size(), cuda.size());
    EXPECT_GT(cpu.size(), 50U);
    for (const auto& [key, row] : cpu) {
      SCOPED_TRACE(key);
      ASSERT_TRUE(cuda.contains(key));
      expect_same(row, cuda.at(key), text.starts_with("protocol: answer"));
    }
    expect_same_sums(cpu, cuda);
  }
};

INSTANTIATE_TEST_SUITE_P(Runs, SlowRunOnCuda, testing::Values("cuda"), ref::backend_case);

constexpr const char* kPolicies =
    "h2o, snapkv, r-kv, keydiff, tova, expected-attention, observed-attention, random, "
    "streaming]\n";

TEST_P(SlowRunOnCuda, DecodeTimePruningMakesTheSameRows) {
  if (!ref::try_backend(GetParam())) GTEST_SKIP() << GetParam() << " is not here";
  expect_same_rows(std::string("policies: [full, golden, ") + kPolicies +
                   "axes: {budget: 128, interval: 64}\n"
                   "metrics: [loss, recall, cosine, local_error, dilution, entropy_split, survival, attention_maps]\n");
}

TEST_P(SlowRunOnCuda, OneShotCompressionMakesTheSameRows) {
  if (!ref::try_backend(GetParam())) GTEST_SKIP() << GetParam() << " is not here";
  expect_same_rows(std::string("protocol: one-shot\npolicies: [full, ") + kPolicies +
                   "axes: {keep: 0.5, allocation: [uniform, pyramid, ada, optimal]}\n"
                   "metrics: [loss, recall, eviction_curve, budget_split]\n");
}

// What is dropped is drawn, and what is evicted goes by position, so that who is seen does not hang on roundings; what
// pages are read does.
TEST_P(SlowRunOnCuda, AdmissionsAndSelectionsMakeTheSameRows) {
  if (!ref::try_backend(GetParam())) GTEST_SKIP() << GetParam() << " is not here";
  expect_same_rows(
      "policies:\n"
      "  - full\n"
      "  - {policy: full, admission: {local: {window: 64}}, label: local}\n"
      "  - {policy: full, admission: {wg-kv: {drop: 0.75, window: 64}}, label: wg-kv}\n"
      "  - {policy: streaming, admission: {wg-kv: {drop: 0.5, window: 32}}, label: wg-kv and streaming}\n"
      "  - {policy: full, selection: {quest: {pages: 16}}, label: quest}\n"
      "  - {policy: full, selection: {quest: {pages: 16, mode: official}}, label: quest (official)}\n"
      "  - {policy: full, admission: {wg-kv: {drop: 0.5, window: 32}}, selection: {quest: {pages: 16}}, label: wg-kv "
      "and quest}\n"
      "axes: {budget: 128, interval: 64}\n"
      "metrics: [loss, cache_size, admission_rate, hidden_distance, output_distance, cosine]\n");
}

// When a cache is too full hangs on what was admitted and evicted before, which neither policy takes from attention;
// whom snapkv evicts does.
TEST_P(SlowRunOnCuda, SchedulesByCapacityMakeTheSameRows) {
  if (!ref::try_backend(GetParam())) GTEST_SKIP() << GetParam() << " is not here";
  expect_same_rows(
      "policies:\n"
      "  - full\n"
      "  - streaming\n"
      "  - {policy: streaming, allocation: share, label: share}\n"
      "  - {policy: streaming, admission: {wg-kv: {drop: 0.5, window: 32}}, allocation: share, label: admitted}\n"
      "  - {policy: snapkv, mode: wg-kv}\n"
      "axes: {capacity: 256, drop: 0.2}\n"
      "metrics: [loss, cache_size, admission_rate]\n");
}

TEST_P(SlowRunOnCuda, AnswersUnderAdmissionsAndSelectionsAgree) {
  if (!ref::try_backend(GetParam())) GTEST_SKIP() << GetParam() << " is not here";
  expect_same_rows(
      "protocol: answer\n"
      "policies:\n"
      "  - full\n"
      "  - {policy: full, admission: {local: {window: 64}}, label: local}\n"
      "  - {policy: full, admission: {wg-kv: {drop: 0.75, window: 64}}, label: wg-kv}\n"
      "  - {policy: streaming, admission: {wg-kv: {drop: 0.5, window: 32}}, label: wg-kv and streaming}\n"
      "  - {policy: full, selection: {quest: {pages: 16}}, label: quest}\n"
      "axes: {budget: 256, interval: 64}\n",
      ", questions: 8", 4);
}

}  // namespace
}  // namespace kv
