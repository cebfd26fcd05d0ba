#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "harness/rows_file.h"
#include "harness/spec/grid.h"
#include "harness/spec/spec_reader.h"
#include "harness/subject.h"
#include "sim/replay/generate.h"
#include "sim/tasks/exam.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/run_fixture.h"

namespace kv {

// The reference model on contexts that it answers well.
class Answers : public RunFixture {
 protected:
  static std::string questions_spec() {
    return "# Who still knows?\nmodel: " + ref::source_path("experiments/models/reference") +
           "\n"
           "data: [{task: kv, tokens: 250, questions: 2}]\n"
           "policies: [full, {policy: snapkv, mode: kvpress, window: 8}, random]\n"
           "protocol: answer\n"
           "axes: {keep: [0.9, 0.3]}\n"
           "samples: 3\nbatch: 2\nseed: 5\n";
  }

  static std::vector<Row> untimed(std::vector<Row> rows) {
    std::erase_if(rows, [](const Row& row) { return is_timing(row.metric); });
    return rows;
  }

  static std::vector<std::string> texts(const std::vector<Row>& answers) {
    std::vector<std::string> all;
    for (const Row& row : answers) all.push_back(row.text);
    return all;
  }

  std::vector<Row> run(const std::string& yaml, const std::string& out = "out") {
    const Spec spec = parse_spec(yaml, (folder_ / "asked.yaml").string());
    RunOptions run_options = options(out);
    run_options.draw = Draw::kLater;
    summary_ = run_experiment(spec, run_options);
    return read_rows(run_options.out / "rows.csv").rows;
  }

  static std::vector<Row> rows_of(const std::vector<Row>& rows, const std::string& metric, const std::string& policy,
                                  const std::string& keep) {
    std::vector<Row> found;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(found), [&](const Row& row) {
      return row.metric == metric && row.policy == policy && row.axes.front() == keep;
    });
    return found;
  }

  static double mean(const std::vector<Row>& rows) {
    double sum = 0;
    for (const Row& row : rows) sum += row.value.value();
    return sum / static_cast<double>(rows.size());
  }

  static UnitBatch batch_of(Backend& backend, const Spec& spec, Subject& subject, const Grid& grid) {
    return {.backend = backend,
            .spec = spec,
            .subject = subject,
            .needs = grid.needs,
            .workload = grid.workloads[0],
            .first = 0,
            .count = 1};
  }

  // What a policy says to a question of an exam, from the first token on or where a reading of the context ended.
  static std::string answer_by_itself(Backend& backend, Subject& subject, const Exam& exam,
                                      const ExamQuestion& question, Policy& policy, LoopState* read = nullptr) {
    std::vector<int32_t> prompt = exam.context;
    prompt.insert(prompt.end(), question.ids.begin(), question.ids.end());
    prompt.insert(prompt.end(), question.prefix.begin(), question.prefix.end());
    const std::span<const int32_t> prompts[] = {prompt};
    const GenerateResult answer = generate({.backend = backend,
                                            .source = *subject.model(),
                                            .policy = policy,
                                            .prompts = prompts,
                                            .resumed = read,
                                            .max_new_tokens = question.max_new_tokens});
    std::vector<int32_t> ends = subject.stop_ids();
    const std::vector<int32_t> lines = line_end_ids(subject.tokenizer());
    ends.insert(ends.end(), lines.begin(), lines.end());
    return answer_text(exam, answer.sequences[0].ids, ends, subject.tokenizer());
  }

  RunSummary summary_;
  int runs_ = 0;
};

}  // namespace kv
