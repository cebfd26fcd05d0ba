// Protocol answer with admissions and selections: what is not seen is not known, in contexts, questions and answers.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "harness/protocols/answer_runner.h"
#include "tests/support/answers_fixture.h"

namespace kv {
namespace {

class AnsweredReading : public Answers {
 protected:
  static std::string with(const std::string& policies, const std::string& axes = "{keep: [0.9, 0.3]}") {
    std::string yaml = questions_spec();
    yaml = test::replaced(yaml, "{keep: [0.9, 0.3]}", axes);
    return test::replaced(yaml, "[full, {policy: snapkv, mode: kvpress, window: 8}, random]", policies);
  }
};

using AnsweredReadingSlow = AnsweredReading;

// A window and pages that hold everything answer as the full cache; what holds little knows little.
TEST_F(AnsweredReadingSlow, WhoeverSeesAllAnswersAsTheFullCache) {
  const std::vector<Row> rows = run(
      with("[full, {policy: full, admission: local, label: wide}, {policy: full, selection: {quest: {pages: 64}}, "
           "label: many}, "
           "{policy: full, admission: {local: {sinks: 4, window: 32}}, label: narrow}, {policy: snapkv, label: cut}, "
           "{policy: snapkv, admission: local, label: wide cut}]"));
  for (const char* metric : {"answer", "accuracy", "kept_tokens", "kept_tokens_max"}) {
    const auto of = [&](const char* policy) {
      std::vector<Row> found = rows_of(rows, metric, policy, "0.3");
      for (Row& row : found) row.policy.clear();
      return found;
    };
    EXPECT_EQ(of("wide"), of("full")) << metric;
    EXPECT_EQ(of("many"), of("full")) << metric;
    EXPECT_EQ(of("wide cut"), of("cut")) << metric;
    EXPECT_NE(of("cut"), of("full")) << metric;
  }
  ASSERT_EQ(rows_of(rows, "kept_tokens", "narrow", "0.3").size(), 3U);
  for (const Row& row : rows_of(rows, "kept_tokens", "narrow", "0.3")) EXPECT_EQ(row.value, 4 + 32);
  EXPECT_LT(mean(rows_of(rows, "accuracy", "narrow", "0.3")), mean(rows_of(rows, "accuracy", "full", "0.3")));
  EXPECT_EQ(summary_.skipped, 0);
}

// Compressed once, and pruned while read: what admission let in, no more than the policy keeps.
TEST_F(AnsweredReadingSlow, AdmissionLeavesLessToCut) {
  const std::string policies =
      "[full, {policy: h2o, admission: {local: {sinks: 8, window: 64}}, label: few}, {policy: streaming, admission: "
      "{local: "
      "{sinks: 8, window: 64}}, label: fewer}]";
  const std::vector<Row> once = run(with(policies), "once");
  for (const char* label : {"few", "fewer"}) {
    for (const char* keep : {"0.9", "0.3"}) ASSERT_EQ(rows_of(once, "kept_tokens", label, keep).size(), 3U);
    for (const Row& row : rows_of(once, "kept_tokens", label, "0.9")) EXPECT_EQ(row.value, 8 + 64);
    for (const Row& row : rows_of(once, "kept_tokens", label, "0.3")) EXPECT_LE(row.value, 8 + 63);
  }
  const std::vector<Row> pruned = run(with(policies, "{budget: [48, 160], interval: 16}"), "pruned");
  for (const char* label : {"few", "fewer"}) {
    for (const char* budget : {"48", "160"}) ASSERT_EQ(rows_of(pruned, "kept_tokens", label, budget).size(), 3U);
    for (const Row& row : rows_of(pruned, "kept_tokens", label, "48")) {
      EXPECT_GE(row.value, 48);
      EXPECT_LT(row.value, 48 + 16);
    }
    for (const Row& row : rows_of(pruned, "kept_tokens", label, "160")) EXPECT_LE(row.value, 8 + 64 + 16);
  }
  // Beside two vectors of 64 and a position when an entry expires, and of h2o the sum of its attention.
  constexpr double kPlain = 2 * 64 * 4 + 4;
  for (const auto& [label, beside] : {std::pair("few", 8), {"fewer", 4}}) {
    for (size_t s = 0; s < 3; ++s) {
      const auto kept = [&](const char* policy) {
        return rows_of(pruned, "kept_tokens", policy, "48")[s].value.value();
      };
      EXPECT_NEAR(rows_of(pruned, "cache_bytes", label, "48")[s].value.value(),
                  kept(label) * (kPlain + beside) / (kept("full") * kPlain), 1e-7);
    }
  }
}

// Of a gate, or of a scorer that is gone when the questions are asked; others take nothing.
TEST_F(AnsweredReadingSlow, SaysWhatTakesWeightsToDecideBy) {
  const std::string policies =
      "[full, h2o, {policy: full, admission: {wg-kv: {weights: initial, window: 64}}, label: gated}, {policy: "
      "retention, "
      "weights: initial, label: rated}]";
  for (const auto& [axes, point] :
       {std::pair("{keep: [0.5]}", "0.5"), std::pair("{budget: [160], interval: 16}", "160")}) {
    const std::vector<Row> rows = run(with(policies, axes), point);
    std::map<std::string, std::set<double>> taken;
    for (const Row& row : rows) {
      if (row.metric == "learned_bytes") taken[row.policy].insert(row.value.value());
    }
    ASSERT_EQ(taken.size(), 2U) << axes;
    for (const char* label : {"gated", "rated"}) {
      ASSERT_EQ(taken[label].size(), 1U);
      EXPECT_GT(*taken[label].begin(), 0);
    }
  }
}

// The shared pass and what goes on from it say what a generation from the first token on says.
TEST_F(AnsweredReadingSlow, AnswersAreThoseOfAGenerationByItself) {
  const Spec spec = parse_spec(with("[full, {policy: full, admission: {local: {sinks: 16, window: 96}}}, {policy: "
                                    "full, selection: {quest: {pages: 4}}}]"),
                               (folder_ / "asked.yaml").string());
  const Grid grid = make_grid(spec);
  const auto backend = make_backend("cpu");
  const auto subject = open_subject(*backend, spec, 0, grid.models.front());
  const AnswerSample sample{.number = 0, .exam = subject->exams(grid.workloads[0], 0, 1).front()};
  AnswerRunner runner(batch_of(*backend, spec, *subject, grid), {sample});
  std::vector<const Case*> cases;
  for (const Case& unit_case : grid.workloads[0].cases) cases.push_back(&unit_case);
  runner.begin(cases);
  int compared = 0;
  for (const Case* unit_case : cases) {
    Policy policy =
        make_policy("full", {}, {.admission = unit_case->slots.admission, .selection = unit_case->slots.selection});
    std::vector<std::string> expected;
    for (const ExamQuestion& question : sample.exam.questions) {
      expected.push_back(answer_by_itself(*backend, *subject, sample.exam, question, policy));
    }
    std::vector<std::string> answers;
    for (const Row& row : runner.run(*unit_case)) {
      if (row.metric == "answer") answers.push_back(row.text);
    }
    EXPECT_EQ(answers, expected) << unit_case->slots.admission.name << unit_case->slots.selection.name;
    compared += static_cast<int>(std::ssize(answers));
  }
  EXPECT_EQ(compared, 2 * static_cast<int>(std::ssize(cases)));
}

TEST_F(AnsweredReading, TheFullCacheIsOneThatSeesEverything) {
  const auto refusal = [&](const std::string& policies, const std::string& axes = "{keep: 0.5}") {
    return test::user_error([&] { run(with(policies, axes)); });
  };
  EXPECT_NE(refusal("[{policy: full, admission: local}]").find("needs the policy full among others"),
            std::string::npos);
  EXPECT_NE(refusal("[full, random]", "{keep: 0.5, admission: [local]}").find("expected 'none' among the values"),
            std::string::npos);
  EXPECT_NE(refusal("[full, random]", "{keep: 0.5, selection: quest}").find("expected 'all' among the values"),
            std::string::npos);
  // One that does not fit is refused for itself, before anything runs.
  EXPECT_NE(
      refusal("[full, {policy: snapkv, admission: {local: {window: 7}}}]").find("expected no more than the 7 tokens"),
      std::string::npos);
}

}  // namespace
}  // namespace kv
