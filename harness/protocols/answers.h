#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "harness/rows.h"
#include "harness/spec/grid.h"
#include "harness/spec/spec.h"
#include "harness/subject.h"
#include "kernels/backend.h"
#include "sim/replay/generate.h"
#include "sim/tasks/exam.h"

namespace kv {

// Tasks that the full cache itself fails say nothing about a policy.
inline constexpr double kLeastFullAccuracy = 0.2;

// A sample of the batch, or why there is none.
struct AnswerSample {
  int32_t number = 0;
  Exam exam{};
  std::string unavailable{};
};

struct AnswerBatch {
  Backend& backend;
  const Spec& spec;
  Subject& subject;
  std::span<const AnswerSample> samples;
  std::span<const Case> cases;  // of the workload
  std::string data;
};

// Protocol answer: a context is read and compressed, then its questions are asked, each by itself from the same
// compressed context, and the generated answers graded. One prefill serves all cases of the batch
// (sim/replay/prefill.h). With query: agnostic (default) the questions come after compression; with query: aware each
// is part of what is compressed, but for the answer's prefix. Rows, one a sample:
//   accuracy           mean grade of the sample's answers by the task's metric (sim/tasks/answer_metrics.h), in [0, 1]
//   answer             the grade of question x, with the answer as text
//   answer_tokens, repetition_rate, truncation_rate   means over its answers (sim/tasks/output_rates.h)
//   kept_tokens, kept_tokens_max   of the compressed context, a head
//   kept_kv_bytes      of its pages: keys, values and positions, without a scorer's columns
//   prefill_time       of the batch, with the scoring for all its policies, shared evenly
//   compress_time      scoring (within that) and cutting for the case, as under protocol latency; copying the context
//                      for its policy, which only a shared pass needs, is no part of it. 0 for the full cache
//   answer_time        the case's own
class AnswerRunner {
 public:
  explicit AnswerRunner(AnswerBatch batch);

  // All rows of the case, one of batch.cases. The first call answers for all of them. A UserError on the way becomes
  // one skipped row of the sample that caused it: a batch that fails is answered again, each sample alone.
  std::vector<Row> run(const Case& one);

 private:
  struct Answer {
    std::string text;
    double grade = 0;
    double repetition = 0;
    bool truncated = false;
    int tokens = 0;
  };
  struct Sheet {                  // of one sample
    std::vector<Answer> answers;  // [questions]
    double kept_mean = 0;
    int64_t kept_max = 0;
    double kv_bytes = 0;
    std::string error;  // then nothing else counts
  };
  struct Outcome {
    std::vector<Sheet> sheets;  // [samples]
    double prefill_seconds = 0;
    double compress_seconds = 0;
    double answer_seconds = 0;
  };
  struct Round;

  void answer_all();
  void answer_batch();
  void answer_alone(const std::vector<size_t>& cases);
  static std::vector<int32_t> kept_of(const Round& round, const Case& one, const Policy& policy);
  void answer_round(const Round& round, const std::vector<size_t>& cases);
  void answer_case(const Round& round, LoopState state, Outcome& outcome);
  int most_new_tokens(size_t question) const;
  std::vector<int32_t> room_of(const Round& round, std::span<const size_t> questions) const;
  void mark(size_t question, const GenerateResult& result, Outcome& outcome);
  GenerateResult ask(const Round& round, size_t question, LoopState state);
  void note_kept(const LoopState& state, Outcome& outcome) const;
  Row blank(const Case& one, int32_t number) const;
  std::vector<Row> rows_of(const Case& one, const Outcome& outcome) const;

  AnswerBatch batch_;
  std::vector<Exam> exams_;                     // of the samples that have one
  std::vector<int32_t> numbers_;                // theirs
  std::vector<std::vector<int32_t>> stop_ids_;  // theirs
  std::vector<int32_t> common_stop_ids_;        // what ends every one of them
  Sampling sampling_;
  std::vector<Outcome> outcomes_;  // [cases]; empty before the first call
};

// Where the full cache's mean accuracy over a workload stays under the least, or there is none, turns the rows of every
// policy into one skipped row a sample that says so. What was skipped already keeps its reason. `rows` [cases], as
// AnswerRunner made them.
void gate_by_full_cache(const Spec& spec, std::span<const Case> cases, std::span<std::vector<Row>> rows);

// Of the spec's key `sampling`: temperature (0: greedy), top_k, top_p. UserError.
Sampling parse_sampling(const Spec& spec);

}  // namespace kv
