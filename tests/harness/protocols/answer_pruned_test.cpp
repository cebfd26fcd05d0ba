// Protocol answer with a budget and an interval: contexts that are pruned while they are read.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "harness/protocols/answer_runner.h"
#include "sim/replay/replay.h"
#include "tests/support/answers_fixture.h"

namespace kv {
namespace {

class PrunedContexts : public Answers {
 protected:
  static std::string pruned_spec(const std::string& axes) {
    std::string yaml = questions_spec();
    yaml.replace(yaml.find("{keep: [0.9, 0.3]}"), 18, axes);
    return yaml.replace(yaml.find(", random]"), 9, ", h2o, {policy: r-kv, window: 8}]");
  }
};

using PrunedContextsSlow = PrunedContexts;

TEST_F(PrunedContextsSlow, ABudgetThatHoldsTheContextAnswersAsTheFullCache) {
  const std::vector<Row> rows = run(pruned_spec("{budget: 512, interval: 16, query: [agnostic, aware]}"));
  for (const char* query : {"agnostic", "aware"}) {
    const auto of = [&](const char* metric, const char* policy) {
      std::vector<Row> found = rows_of(rows, metric, policy, "512");
      std::erase_if(found, [&](const Row& row) { return row.axes[2] != query; });
      for (Row& row : found) row.policy.clear();
      return found;
    };
    for (const char* metric : {"answer", "accuracy", "kept_tokens", "kept_tokens_max", "kept_kv_bytes"}) {
      const std::vector<Row> full = of(metric, "full");
      ASSERT_EQ(full.size(), std::string(metric) == "answer" ? 6U : 3U);
      for (const char* policy : {"snapkv", "h2o", "r-kv"}) EXPECT_EQ(of(metric, policy), full) << policy << metric;
    }
  }
  EXPECT_EQ(summary_.skipped, 0);
}

// The budget with what came since the last event, of every head; nothing came where events are at every token.
TEST_F(PrunedContextsSlow, AreWhatTheScheduleLeaves) {
  std::string yaml = pruned_spec("{budget: [144, 64], interval: 48}");
  yaml.replace(yaml.find("h2o"), 3, "{policy: h2o, mode: original}");
  const std::vector<Row> rows = run(yaml);
  for (const int budget : {144, 64}) {
    const std::string point = std::to_string(budget);
    const auto full = rows_of(rows, "kept_tokens", "full", point);
    ASSERT_EQ(full.size(), 3U);
    for (size_t s = 0; s < 3; ++s) {
      const int tokens = static_cast<int>(full[s].value.value());
      ASSERT_GT(tokens, budget + 48);
      for (const char* metric : {"kept_tokens", "kept_tokens_max"}) {
        EXPECT_EQ(rows_of(rows, metric, "snapkv", point)[s].value, budget + (tokens - budget) % 48);
        EXPECT_EQ(rows_of(rows, metric, "r-kv", point)[s].value, budget + (tokens - budget) % 48);
        EXPECT_EQ(rows_of(rows, metric, "h2o", point)[s].value, budget);
      }
      // Two vectors of 64 and a position, and of h2o the sum of the attention that an entry received.
      constexpr double kEntry = 2 * 64 * 4 + 4;
      const auto bytes = [&](const char* policy) {
        return rows_of(rows, "cache_bytes", policy, point)[s].value.value();
      };
      EXPECT_EQ(bytes("full"), 1);
      EXPECT_NEAR(bytes("h2o"), budget * (kEntry + 4) / (tokens * kEntry), 1e-8);
    }
  }
  // What is gone is gone: few entries know less, and the full cache is answered once.
  EXPECT_LT(mean(rows_of(rows, "accuracy", "r-kv", "64")), mean(rows_of(rows, "accuracy", "full", "64")));
  EXPECT_EQ(texts(rows_of(rows, "answer", "full", "64")), texts(rows_of(rows, "answer", "full", "144")));
  EXPECT_EQ(rows_of(rows, "answer_time", "full", "64")[0].value, rows_of(rows, "answer_time", "full", "144")[0].value);
  for (const Row& row : rows_of(rows, "compress_time", "r-kv", "64")) EXPECT_GT(row.value.value(), 0);
}

// A replay of the context by hand, and an answer over what it leaves.
TEST_F(PrunedContexts, AreAnsweredAsAReplayLeavesThem) {
  const Spec spec = parse_spec(pruned_spec("{budget: 112, interval: 16}"), (folder_ / "asked.yaml").string());
  const Grid grid = make_grid(spec);
  const auto backend = make_backend("cpu");
  const auto subject = open_subject(*backend, spec, 0, grid.models.front());
  AnswerSample sample{.number = 0, .exam = subject->exams(grid.workloads[0], 0, 1).front()};
  const int32_t length = 112 + 16 * 6;  // an event at its end
  ASSERT_GT(std::ssize(sample.exam.context), length);
  sample.exam.context.erase(sample.exam.context.begin(), sample.exam.context.end() - length);
  AnswerRunner runner(batch_of(*backend, spec, *subject, grid), {sample});
  std::vector<const Case*> cases;
  for (const Case& unit_case : grid.workloads[0].cases) cases.push_back(&unit_case);
  runner.begin(cases);
  for (size_t c = 1; c < cases.size(); ++c) {
    Policy policy = make_policy(spec.policies[c].name, cases[c]->options), full = make_policy("full", {});
    const std::span<const int32_t> context[] = {sample.exam.context};
    const Schedule schedule = prompt_decode_schedule({&length, 1}, 112, 16);
    ASSERT_EQ(schedule.back().keep, std::vector<int32_t>{112});
    std::vector<std::string> expected;
    for (const ExamQuestion& question : sample.exam.questions) {
      std::optional<LoopState> left;
      replay({.backend = *backend,
              .source = *subject->model(),
              .policy = policy,
              .sequences = context,
              .schedule = schedule,
              .budget = 112,
              .interval = 16,
              .seed = 5,
              .left = &left});
      expected.push_back(answer_by_itself(*backend, *subject, sample.exam, question, full, &*left));
    }
    const std::vector<Row> rows = runner.run(*cases[c]);
    std::vector<std::string> answers;
    for (const Row& row : rows) {
      if (row.metric == "answer") answers.push_back(row.text);
      if (row.metric == "kept_tokens") {
        EXPECT_EQ(row.value, 112);
      }
    }
    EXPECT_EQ(answers, expected) << policy.name;
  }
}

TEST_F(PrunedContextsSlow, OfDifferentLengthsAreAnsweredAsEachAlone) {
  std::string lines, context;
  for (int i = 0; i < 6; ++i) {
    context += fmt::format("apple: red\\nriver: blue\\nstone: grey\\nnumber {}: green\\n", i);
    if (i % 2 == 0) continue;
    lines += fmt::format(R"({{"context": "{}", "question": "<|question|>river", "answer_prefix": "<|answer|>", )"
                         R"("answers": ["blue"], "max_new_tokens": 6}})"
                         "\n",
                         context);
  }
  write_atomically(folder_ / "colours.jsonl", lines);
  std::string yaml = pruned_spec("{budget: 48, interval: 24, allocation: [uniform, ada]}");
  const std::string task = "data: [{task: kv, tokens: 250, questions: 2}]";
  yaml.replace(yaml.find(task), task.size(), "data: [{jsonl: colours.jsonl, metric: substring_match}]");
  const std::vector<Row> together = untimed(run(yaml, "together"));
  EXPECT_EQ(summary_.skipped, 0);
  yaml.replace(yaml.find("batch: 2"), 8, "batch: 1");
  EXPECT_EQ(untimed(run(yaml, "alone")), together);
  std::set<double> lengths;
  for (const Row& row : rows_of(together, "kept_tokens", "full", "48")) lengths.insert(row.value.value());
  EXPECT_EQ(lengths.size(), 3U);
}

TEST_F(PrunedContexts, RefusesWhatCannotBePruned) {
  const auto message = [&](const std::string& axes, const std::string& policy = "random") {
    std::string yaml = questions_spec();
    yaml.replace(yaml.find("{keep: [0.9, 0.3]}"), 18, axes);
    yaml.replace(yaml.find("random]"), 7, policy + "]");
    return test::user_error([&] { make_grid(parse_spec(yaml, "asked.yaml")); });
  };
  EXPECT_EQ(message("{keep: 0.3, budget: 64, interval: 16}"),
            "asked.yaml:6:27: axes: protocol answer takes either the axis keep or the axes budget and interval, or "
            "capacity, not both");
  EXPECT_EQ(message("{query: aware}"),
            "asked.yaml:4:18: policy 'snapkv' under protocol answer needs the axis keep, the axes budget and "
            "interval, or the axis capacity");
  EXPECT_EQ(message("{budget: 64}"),
            "asked.yaml:6:16: policy 'snapkv' under protocol answer needs the axes budget and interval, or the axis "
            "capacity");
  EXPECT_EQ(message("{interval: 64}"),
            "asked.yaml:6:18: policy 'snapkv' under protocol answer needs the axes budget and interval, or the axis "
            "capacity");
  EXPECT_EQ(message("{budget: 64, interval: 16}", "golden"),
            "asked.yaml:4:62: policy 'golden' needs the future, which protocol answer has yet to write");
  // As under protocol decode.
  EXPECT_EQ(message("{budget: 16, interval: 16}"), "asked.yaml:6:16: snapkv: budget 16 must exceed the interval 16");
  EXPECT_EQ(message("{budget: 64, interval: 16}", "{policy: r-kv, window: 64}"), test::user_error([&] {
              make_grid(parse_spec("# ?\nmodel: " + ref::source_path("experiments/models/reference") +
                                       "\ndata: [{task: kv, tokens: 250}]\n#\npolicies: [{policy: r-kv, window: 64}]\n"
                                       "axes: {budget: 64, interval: 16}\nmetrics: [loss]\n",
                                   "asked.yaml"));
            }));
}

}  // namespace
}  // namespace kv
