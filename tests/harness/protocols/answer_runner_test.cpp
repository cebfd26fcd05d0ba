#include "harness/protocols/answer_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "kernels/error.h"
#include "tests/support/answers_fixture.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

TEST_F(Answers, AModelWithoutAChatTemplateIsRefusedWhereOneIsAskedFor) {
  const std::string error = test::user_error([&] { run(questions_spec() + "chat: {template: stored}\n"); });
  EXPECT_TRUE(error.ends_with("models/reference: has no chat template")) << error;
  const std::string unknown = test::user_error([&] { run(questions_spec() + "chat: {template: mine}\n"); });
  EXPECT_NE(unknown.find("expected none | stored"), std::string::npos) << unknown;
}

using AnswersSlow = Answers;

TEST_F(AnswersSlow, TheFullCacheKnowsAndAlmostNothingDoesNot) {
  const std::vector<Row> rows = run(questions_spec());
  const auto full = rows_of(rows, "accuracy", "full", "0.9");
  ASSERT_EQ(full.size(), 3U);
  EXPECT_GE(mean(full), 0.6);
  EXPECT_LT(mean(rows_of(rows, "accuracy", "random", "0.3")), mean(full));
  EXPECT_EQ(summary_.skipped, 0);
}

TEST_F(AnswersSlow, AnAccuracyIsTheMeanOfItsAnswers) {
  const std::vector<Row> rows = run(questions_spec());
  for (const char* policy : {"full", "snapkv", "random"}) {
    const auto answers = rows_of(rows, "answer", policy, "0.9");
    const auto accuracy = rows_of(rows, "accuracy", policy, "0.9");
    ASSERT_EQ(answers.size(), 6U);
    for (size_t s = 0; s < 3; ++s) {
      double sum = 0;
      for (size_t q = 0; q < 2; ++q) {
        EXPECT_EQ(answers[2 * s + q].sample, static_cast<int64_t>(s));
        EXPECT_EQ(answers[2 * s + q].x, static_cast<double>(q));
        sum += answers[2 * s + q].value.value();
      }
      EXPECT_DOUBLE_EQ(accuracy[s].value.value(), sum / 2);
    }
  }
}

// Contexts that the model answers from; then it rambles on, because nothing ends a line of a data set.
TEST_F(AnswersSlow, AreDrawnByTheSeedWhereSamplingIsAskedFor) {
  std::string lines;
  for (const char* more : {"", "milk: white\\n"}) {
    for (const auto& [question, answer] : {std::pair{"river", "blue"}, {"stone", "grey"}, {"apple", "red"}}) {
      lines += fmt::format(R"({{"context": "apple: red\nriver: blue\nstone: grey\ngrass: green\nsnow: white\n{}", )"
                           R"("question": "<|question|>{}", "answer_prefix": "<|answer|>", "answers": ["{}"], )"
                           R"("max_new_tokens": 24}})"
                           "\n",
                           more, question, answer);
    }
  }
  write_atomically(folder_ / "colours.jsonl", lines);
  const auto rows = [&](const std::string& sampling, int seed, int batch) {
    const std::string yaml = fmt::format(
        "model: {}\ndata: [{{jsonl: colours.jsonl, metric: substring_match}}]\nprotocol: answer\naxes: {{keep: 0.8}}\n"
        "policies: [full, {{policy: snapkv, mode: kvpress, window: 8}}]\nsamples: 2\nseed: {}\nbatch: {}\n{}",
        ref::source_path("experiments/models/reference"), seed, batch, sampling);
    std::vector<Row> all = untimed(run(yaml, fmt::format("out{}", ++runs_)));
    EXPECT_EQ(summary_.skipped, 0);
    return all;
  };
  const auto answers = [](const std::vector<Row>& all, const std::string& policy) {
    std::vector<std::string> out = texts(rows_of(all, "answer", policy, "0.8"));
    EXPECT_EQ(out.size(), 6U);
    return out;
  };
  const std::string sampling = "sampling: {temperature: 0.7, top_k: 50, top_p: 0.95}\n";
  const std::vector<Row> drawn = rows(sampling, 5, 2), other = rows(sampling, 6, 2);
  const std::vector<Row> greedy = rows("", 5, 2), greedy_other = rows("", 6, 2);
  EXPECT_EQ(rows(sampling, 5, 1), drawn);
  for (const char* policy : {"full", "snapkv"}) {
    EXPECT_EQ(answers(greedy_other, policy), answers(greedy, policy));  // the seed decides nothing else here
    EXPECT_NE(answers(drawn, policy), answers(greedy, policy));
    EXPECT_NE(answers(other, policy), answers(drawn, policy));
    EXPECT_EQ(rows_of(drawn, "accuracy", policy, "0.8").size(), 2U);
  }
}

// Two values of one sample, a token a digit: the first is cut before its line ends.
TEST_F(Answers, AreCountedAndMarkedWhereTheirLengthCutThem) {
  const Spec spec = parse_spec(questions_spec(), (folder_ / "asked.yaml").string());
  const Grid grid = make_grid(spec);
  const auto backend = make_backend("cpu");
  const auto subject = open_subject(*backend, spec, 0, grid.models.front());
  AnswerSample sample{.number = 0, .exam = subject->exams(grid.workloads[0], 0, 1).front()};
  sample.exam.questions[0].max_new_tokens = 4;
  const std::vector<Case>& cases = grid.workloads[0].cases;
  AnswerRunner runner(batch_of(*backend, spec, *subject, grid), {sample});
  const Case* const first = &cases[0];
  runner.begin({&first, 1});
  std::map<std::string, double> values;
  std::vector<std::string> answers;
  for (const Row& row : runner.run(cases[0])) {
    if (row.metric == "answer") {
      answers.push_back(row.text);
    } else {
      values[row.metric] = row.value.value();
    }
  }
  ASSERT_EQ(answers, (std::vector<std::string>{"4651", "9831096"}));
  EXPECT_EQ(values["accuracy"], 1);
  EXPECT_EQ(values["answer_tokens"], (4 + 8) / 2.0);  // the second with its line's end
  EXPECT_EQ(values["truncation_rate"], 0.5);
  EXPECT_EQ(values["repetition_rate"], 0);
}

// b for " blue" and s for a lone space: of the nine runs of four tokens in bbbsbbbbbsbb, bbbb, bbbs, bbsb and bsbb come
// again. Of the three in bbbsbb none does.
TEST_F(Answers, RepetitionIsTheShareOfRunsThatComeAgain) {
  std::string lines, context;
  for (int i = 0; i < 60; ++i) context += "blue ";
  for (const int tokens : {12, 6}) {
    lines += fmt::format(R"({{"context": "{}", "question": "blue blue", "answer_prefix": " blue", "answers": "blue", )"
                         R"("max_new_tokens": {}}})"
                         "\n",
                         context, tokens);
  }
  write_atomically(folder_ / "blue.jsonl", lines);
  const std::vector<Row> rows =
      run("model: " + ref::source_path("experiments/models/reference") +
          "\ndata: [{jsonl: blue.jsonl}]\npolicies: [full]\nprotocol: answer\naxes: {keep: 0.5}\n");
  const auto answers = rows_of(rows, "answer", "full", "0.5");
  ASSERT_EQ(answers.size(), 2U);
  ASSERT_EQ(answers[0].text, " blue blue blue  blue blue blue blue blue  blue blue");
  ASSERT_EQ(answers[1].text, " blue blue blue  blue blue");
  EXPECT_EQ(mean(rows_of(rows, "answer_tokens", "full", "0.5")), 9);
  EXPECT_NEAR(mean(rows_of(rows, "repetition_rate", "full", "0.5")), (4.0 / 9 + 0) / 2, 1e-9);
  EXPECT_EQ(mean(rows_of(rows, "truncation_rate", "full", "0.5")), 1);
}

// int(tokens · 0.3) of each context, on the cache itself, and the pages of 16 that they take in 8 layers of 4 heads.
TEST_F(Answers, KeepsTheAskedFractionOfTheContext) {
  const std::vector<Row> rows = run(questions_spec());
  const auto full = rows_of(rows, "kept_tokens", "full", "0.3");
  const auto kept = rows_of(rows, "kept_tokens", "snapkv", "0.3");
  const auto bytes = rows_of(rows, "kept_kv_bytes", "snapkv", "0.3");
  ASSERT_EQ(kept.size(), 3U);
  ASSERT_EQ(bytes.size(), 3U);
  constexpr int kPageBytes = 16 * (2 * 64 * 4 + 4);
  for (size_t s = 0; s < kept.size(); ++s) {
    const int entries = static_cast<int>(full[s].value.value() * 0.3);
    EXPECT_EQ(kept[s].value.value(), entries);
    EXPECT_EQ(bytes[s].value.value(), (entries + 15) / 16 * 8 * 4 * kPageBytes);
    EXPECT_NEAR(rows_of(rows, "cache_bytes", "snapkv", "0.3")[s].value.value(), entries / full[s].value.value(), 1e-8);
  }
}

// The full cache has no context to compress, so it sees the question the same way in both.
TEST_F(AnswersSlow, AQuestionThatIsSeenChangesWhatIsKept) {
  const std::vector<Row> rows = run(questions_spec() + "", "plain");
  std::string aware = questions_spec();
  aware.replace(aware.find("axes: {keep: [0.9, 0.3]}"), 24, "axes: {query: [agnostic, aware], keep: 0.3}");
  const std::vector<Row> both = run(aware, "both");
  const auto of = [&](const char* metric, const char* policy, const char* query) {
    return rows_of(both, metric, policy, query);
  };
  EXPECT_EQ(texts(of("answer", "full", "agnostic")), texts(of("answer", "full", "aware")));
  EXPECT_EQ(texts(of("answer", "snapkv", "agnostic")), texts(rows_of(rows, "answer", "snapkv", "0.3")));
  EXPECT_NE(texts(of("answer", "snapkv", "aware")), texts(of("answer", "snapkv", "agnostic")));
}

// 3 samples of 2 questions, 8 layers of 4 KV heads.
TEST_F(AnswersSlow, SayWhatOfItsNeedlesAHeadStillHolds) {
  std::vector<Row> plain = run(questions_spec(), "plain"), with = run(questions_spec() + "needles: {heads: yes}\n");
  const auto full = rows_of(with, "needle_kept", "full", "0.3"), few = rows_of(with, "needle_kept", "random", "0.3");
  ASSERT_EQ(full.size(), 3U * 2 * 8 * 4);
  ASSERT_EQ(few.size(), full.size());
  std::set<std::tuple<int64_t, double, int, int>> places;
  for (const Row& row : full) {
    EXPECT_EQ(row.value, 1);
    places.emplace(row.sample.value(), row.x.value(), row.layer.value(), row.head.value());
  }
  EXPECT_EQ(places.size(), full.size());
  // 192 draws of 3 in 10 for each of about 10 tokens: a standard error of 0.011.
  EXPECT_NEAR(mean(few), 0.3, 0.06);
  const auto rest = [](std::vector<Row> rows) {
    std::erase_if(rows, [](const Row& row) { return row.metric == "needle_kept" || is_timing(row.metric); });
    return rows;
  };
  EXPECT_EQ(rest(with), rest(plain));
}

// The window of SnapKV holds the question then, which looks at what it asks for.
TEST_F(AnswersSlow, AQuestionThatIsSeenHoldsItsNeedles) {
  std::string aware = questions_spec() + "needles: {heads: yes}\n";
  aware.replace(aware.find("axes: {keep: [0.9, 0.3]}"), 24, "axes: {query: [agnostic, aware], keep: 0.3}");
  const std::vector<Row> rows = run(aware);
  EXPECT_GT(mean(rows_of(rows, "needle_kept", "snapkv", "aware")),
            mean(rows_of(rows, "needle_kept", "snapkv", "agnostic")) + 0.05);
}

// The two that go through all rows several times.
TEST_F(AnswersSlow, RowsDependOnNeitherBatchesNorAKill) {
  const std::vector<Row> rows = untimed(run(questions_spec()));
  std::string single = questions_spec();
  single.replace(single.find("batch: 2"), 8, "batch: 1");
  EXPECT_EQ(untimed(run(single, "single")), rows);

  struct Killed {};
  const Spec spec = parse_spec(questions_spec(), (folder_ / "asked.yaml").string());
  RunOptions run_options = options("killed");
  run_options.draw = Draw::kLater;
  int left = 4;
  run_options.after_case = [&] {
    if (--left == 0) throw Killed{};
  };
  EXPECT_THROW(run_experiment(spec, run_options), Killed);
  EXPECT_EQ(untimed(run(questions_spec(), "killed")), rows);
  EXPECT_EQ(summary_.reused, 4 * 2) << "units of two samples";
}

// One sample's answers end with their line, the other's do not.
TEST_F(AnswersSlow, OfASampleDoNotDependOnWhatEndsTheOthers) {
  const Spec spec = parse_spec(questions_spec(), (folder_ / "asked.yaml").string());
  const Grid grid = make_grid(spec);
  const auto backend = make_backend("cpu");
  const auto subject = open_subject(*backend, spec, 0, grid.models.front());
  std::vector<AnswerSample> samples(2);
  for (int32_t s = 0; s < 2; ++s) {
    AnswerSample& sample = samples[static_cast<size_t>(s)];
    sample = {.number = s, .exam = subject->exams(grid.workloads[0], s, 1).front()};
    sample.exam.one_line = s == 0;
    for (ExamQuestion& question : sample.exam.questions) question.max_new_tokens = s == 0 ? 24 : 40;
  }
  const std::vector<Case>& cases = grid.workloads[0].cases;
  const auto answered = [&](std::span<const AnswerSample> batch, const Case& unit_case) {
    AnswerRunner runner(batch_of(*backend, spec, *subject, grid), {batch.begin(), batch.end()});
    const Case* const only = &unit_case;
    runner.begin({&only, 1});
    return untimed(runner.run(unit_case));
  };
  std::vector<Row> alone = answered(std::span(samples).first(1), cases[0]);
  for (const Row& row : answered(std::span(samples).last(1), cases[0])) alone.push_back(row);
  EXPECT_EQ(answered(samples, cases[0]), alone);
  const auto tokens =
      std::find_if(alone.begin(), alone.end(), [](const Row& r) { return r.metric == "answer_tokens"; });
  EXPECT_LT(tokens->value.value(), 24) << "the case shows nothing: no line ended";
}

TEST_F(AnswersSlow, RowsDoNotDependOnThreads) {
  std::string yaml = questions_spec();
  yaml.replace(yaml.find("axes: {keep: [0.9, 0.3]}"), 24,
               "axes: {keep: 0.3, query: [agnostic, aware], allocation: [uniform, ada]}");
  std::vector<std::vector<Row>> rows;
  for (const int threads : {1, 2}) {
    const ref::Threads set(threads);
    rows.push_back(untimed(run(yaml, fmt::format("threads{}", threads))));
  }
  EXPECT_EQ(rows[0], rows[1]);
}

TEST_F(Answers, ADataSetOfJsonLinesIsAskedAndItsBadLinesAreNamed) {
  const std::string context = R"("context": "apple: red\nriver: blue\nstone: grey\n", "answer_prefix": "<|answer|>")";
  write_atomically(folder_ / "colours.jsonl",
                   "{" + context +
                       R"(, "question": "<|question|>river", "answers": ["blue"], "max_new_tokens": 4})"
                       "\n" +
                       "{" + context +
                       R"(, "question": "<|question|>stone", "answers": ["grey"], "max_new_tokens": 4})"
                       "\n" +
                       "{broken\n");
  std::string yaml = questions_spec();
  const std::string task = "data: [{task: kv, tokens: 250, questions: 2}]";
  yaml.replace(yaml.find(task), task.size(), "data: [{jsonl: colours.jsonl, metric: exact_match, samples: 1}]");
  yaml.replace(yaml.find("window: 8"), 9, "window: 2");
  const std::vector<Row> rows = run(yaml);
  ASSERT_EQ(rows.front().metric, "malformed_lines");
  EXPECT_EQ(rows.front().value, 1.0);
  EXPECT_NE(rows.front().text.find("colours.jsonl:3: "), std::string::npos) << rows.front().text;
  EXPECT_EQ(summary_.problems.front(), "left out: " + rows.front().text);
  const auto accuracy =
      std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.metric == "accuracy"; });
  EXPECT_EQ(accuracy, 6);  // one context, three policies at two fractions
  // A sample that is not there costs the other of its batch nothing.
  yaml.replace(yaml.find("samples: 1}"), 11, "samples: 2}");
  const std::vector<Row> more = run(yaml, "more");
  EXPECT_TRUE(more.back().skipped.ends_with("'colours.jsonl' has 1 contexts, expected more than 1"))
      << more.back().skipped;
  EXPECT_EQ(more.back().sample, 1);
  const auto first = [](std::vector<Row> all) {
    std::erase_if(all, [](const Row& row) { return row.sample != 0 || is_timing(row.metric); });
    return all;
  };
  EXPECT_EQ(first(more), first(rows));
}

TEST_F(Answers, ADataSetWithoutAUsableLineIsRefusedBeforeAnythingRuns) {
  std::string yaml = questions_spec();
  const std::string task = "data: [{task: kv, tokens: 250, questions: 2}]";
  yaml.replace(yaml.find(task), task.size(), "data: [{jsonl: broken.jsonl, metric: exact_match, samples: 1}]");
  const auto refusal = [&](const char* content) {
    write_atomically(folder_ / "broken.jsonl", content);
    return test::user_error([&] { validate_experiment(parse_spec(yaml, (folder_ / "asked.yaml").string())); });
  };
  EXPECT_TRUE(refusal("{broken\n").ends_with("; none of 1 lines can be used"));
  EXPECT_TRUE(refusal("").ends_with("broken.jsonl: is empty, expected one JSON object a line"));
}

// Two samples: 0.1 and 0.25 are 17.5 % on average; 0.1 and 0.3 are 20 %.
TEST_F(Answers, ATaskThatTheFullCacheFailsIsSkippedForAll) {
  const Spec spec = parse_spec(questions_spec(), "asked.yaml");
  const std::vector<Case> cases = make_grid(spec).workloads[0].cases;
  const auto rows_with = [&](double second) {
    std::vector<std::vector<Row>> rows(cases.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      const bool full = cases[i].policy == 0;
      rows[i] = {{.sample = 0, .metric = "accuracy", .value = full ? 0.1 : 1},
                 {.sample = 0, .metric = "kept_tokens", .value = 9},
                 {.sample = 1, .metric = "accuracy", .value = full ? second : 1}};
    }
    rows[1].push_back({.sample = 2, .skipped = "too thin"});
    return rows;
  };
  auto failed = rows_with(0.25), passed = rows_with(0.3);
  gate_by_full_cache(spec, cases, failed);
  gate_by_full_cache(spec, cases, passed);
  EXPECT_EQ(passed, rows_with(0.3));
  ASSERT_EQ(failed[1].size(), 3U);
  EXPECT_EQ(failed[1].back().skipped, "too thin");
  failed[1].pop_back();
  for (const std::vector<Row>& rows : failed) {
    ASSERT_EQ(rows.size(), 2U);
    for (const Row& row : rows) {
      EXPECT_EQ(row.metric, "accuracy");
      EXPECT_FALSE(row.value.has_value());
      EXPECT_EQ(row.skipped, "the full cache scores 17.5 %, under 20 %");
    }
  }
}

TEST_F(Answers, WithoutAScoreOfTheFullCacheNothingCounts) {
  const Spec spec = parse_spec(questions_spec(), "asked.yaml");
  const std::vector<Case> cases = make_grid(spec).workloads[0].cases;
  std::vector<std::vector<Row>> rows(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    const bool full = cases[i].policy == 0;
    rows[i] = {full ? Row{.sample = 0, .skipped = "too long"} : Row{.sample = 0, .metric = "accuracy", .value = 1}};
  }
  gate_by_full_cache(spec, cases, rows);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(rows[i].at(0).skipped, cases[i].policy == 0 ? "too long" : "the full cache has no score");
  }
}

// snapkv needs more than its window of 60: the short context has 0.3 · 100 = 30 entries left, the long one enough.
TEST_F(Answers, AShortContextIsSkippedAloneWhateverTheBatch) {
  std::string yaml = questions_spec();
  const std::string words = "red blue grey green brown black white pink gold ";
  const auto line = [](const std::string& context) {
    return R"({"context": ")" + context + R"(", "question": "<|question|>red", "answer_prefix": "<|answer|>", )" +
           R"("answers": ["blue"], "max_new_tokens": 4})" + "\n";
  };
  std::string longer;
  for (int i = 0; i < 60; ++i) longer += words;
  write_atomically(folder_ / "two.jsonl", line(words) + line(longer));
  const std::string task = "data: [{task: kv, tokens: 250, questions: 2}]";
  yaml.replace(yaml.find(task), task.size(), "data: [{jsonl: two.jsonl, samples: 2}]");
  yaml.replace(yaml.find("window: 8"), 9, "window: 60");
  const Spec spec = parse_spec(yaml, (folder_ / "asked.yaml").string());
  run(yaml);
  const RowTable table = read_rows(folder_ / "out" / "rows.csv");
  std::vector<std::string> reasons;
  for (const Row& row : table.rows) {
    if (row.policy == "snapkv" && row.axes[0] == "0.3" && !row.skipped.empty()) reasons.push_back(row.skipped);
  }
  // The full cache answers neither, so the long context's rows are gated; the short one keeps its own reason.
  ASSERT_EQ(reasons.size(), 2U);
  EXPECT_TRUE(reasons[0].starts_with("snapkv: budget ")) << reasons[0];
  EXPECT_TRUE(reasons[1].starts_with("the full cache ")) << reasons[1];
}

TEST_F(Answers, RefusesWhatCannotBeAnswered) {
  const auto message = [&](const std::string& from, const std::string& to) -> std::string {
    std::string yaml = questions_spec();
    yaml.replace(yaml.find(from), from.size(), to);
    try {
      const Spec spec = parse_spec(yaml, "asked.yaml");
      make_grid(spec);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message("full, ", ""), "asked.yaml: protocol answer needs the policy full among others");
  EXPECT_EQ(message("random]", "golden]"),
            "asked.yaml:4:62: policy 'golden' needs the future, which protocol answer has yet to write");
  EXPECT_EQ(message("random]", "{policy: random, allocation: optimal}]"),
            "asked.yaml:4:62: policy 'random+optimal' needs the future (allocation 'optimal' divides each input by "
            "it), which protocol answer has yet to write");
  EXPECT_EQ(message("keep: [0.9, 0.3]", "keep: 0.3, allocation: [uniform, optimal]"),
            "asked.yaml:6:41: policy 'snapkv' needs the future (allocation 'optimal' divides each input by it), which "
            "protocol answer has yet to write");
  EXPECT_EQ(message("{task: kv, tokens: 250, questions: 2}", "{jsonl: a.jsonl, metric: bleu}"),
            "asked.yaml:3:16: answer metric bleu is unknown, expected one of exact_match, substring_match, "
            "substring_match_any, token_f1, rouge_l, edit_similarity");
  EXPECT_EQ(message("keep: [0.9, 0.3]", "keep: 0.3, query: both"),
            "asked.yaml:6:26: axes: query = both: expected agnostic or aware");
  EXPECT_EQ(message("samples: 3", "metrics: [loss]\nsamples: 3"),
            "asked.yaml:7:10: metrics = a list: protocol answer has its own rows, expected no such key");
  EXPECT_EQ(message("{task: kv, tokens: 250, questions: 2}", "{text: a.txt}"),
            "asked.yaml:3:15: data: 'a' asks nothing; protocol answer expects a task or jsonl");
  EXPECT_EQ(message("samples: 3", "sampling: {temperature: -1}\nsamples: 3"),
            "generation: temperature -1: expected 0 (greedy) to 10000");
  EXPECT_EQ(message("samples: 3", "sampling: {temprature: 1}\nsamples: 3"),
            "asked.yaml:7:24: sampling: temprature = 1: unknown option, did you mean 'temperature'? (expected one of: "
            "temperature, top_k, top_p)");
}

}  // namespace
}  // namespace kv
