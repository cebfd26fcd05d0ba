#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/protocols/answer_rows.h"
#include "harness/protocols/unit.h"
#include "kernels/error.h"
#include "sim/replay/generate.h"
#include "sim/tasks/exam.h"

namespace kv {

// A sample of the batch, or why there is none.
struct AnswerSample {
  int32_t number = 0;
  Exam exam{};
  std::string unavailable{};
};

std::vector<AnswerSample> read_answer_samples(const UnitBatch& batch);

// Protocol answer: a context is read and compressed, then its questions are asked, each by itself from the same
// compressed context, and the generated answers graded. With `keep` it is compressed once, at its end, and one prefill
// serves all such cases of the batch and the full cache that have the same admission and selection
// (sim/replay/prefill.h), which hold for questions and answers, too. With `budget` and `interval` it is
// pruned while it is read, as under protocol decode, a pass for each case; what is left at its end is what that
// schedule leaves: the budget and the tokens since the last event, fewer than the interval. Nothing more is pruned
// then, neither by the question nor by the answer, so that all questions are asked of the same entries. With query:
// agnostic (default) the questions come after compression; with query: aware each is part of what is compressed, but
// for the answer's prefix. Rows: harness/protocols/answer_rows.h.
class AnswerRunner final : public UnitRunner {
 public:
  AnswerRunner(const UnitBatch& batch, std::vector<AnswerSample> samples);

  std::string inputs() const override;
  std::vector<std::string> prompts() const override;
  void begin(std::span<const Case* const> cases) override;
  // The first call answers for all cases. A UserError on the way becomes one skipped row of the sample that caused it:
  // a batch that fails is answered again, each sample alone, but for one that does not fit the device.
  std::vector<Row> run(const Case& unit_case) override;

 private:
  struct Outcome {
    std::vector<AnswerSheet> sheets;  // [exams]
    AnswerTimes times{};
    double entry_bytes = 0;      // of an entry of the context, with what is kept beside it
    size_t query_bytes = 0;      // ReplayResult's
    size_t learned_bytes = 0;    // of what the policy decides by
    bool out_of_memory = false;  // fewer at a time would not be the batch that was asked for
  };
  struct Round;
  struct Candidate;

  void answer_all();
  void answer_batch();
  void answer_alone(const std::vector<size_t>& failed);
  static std::vector<int32_t> kept_of(const Round& round, const Case& unit_case, const Policy& policy);
  void answer_round(const Round& round, const std::vector<size_t>& cases);
  void answer_compressed(const Round& round, std::vector<Candidate>& candidates);
  void answer_pruned(const Round& round, Candidate candidate);
  LoopState read_pruned(const Round& round, Candidate& candidate);
  static void fail(Outcome& outcome, const UserError& error);
  // `reader` reads on where the state ends, under the case's admission and selection.
  void answer_case(const Round& round, LoopState state, Policy& reader, Outcome& outcome);
  int most_new_tokens(size_t question) const;
  std::vector<int32_t> room_of(const Round& round, std::span<const size_t> questions) const;
  void grade_answers(size_t question, const GenerateResult& result, Outcome& outcome);
  GenerateResult ask(const Round& round, size_t question, LoopState state, Policy& reader);
  void note_learned(const Policy& policy, Outcome& outcome) const;
  void note_kept(const Round& round, const LoopState& state, Outcome& outcome) const;
  void note_needles(const Round& round, const LoopState& state, Outcome& outcome) const;
  std::vector<Row> rows_of(const Case& unit_case, const Outcome& outcome) const;

  UnitBatch batch_;
  std::vector<AnswerSample> samples_;
  std::vector<const Case*> cases_;
  std::vector<Exam> exams_;                     // of the samples that have one
  std::vector<int32_t> numbers_;                // theirs
  std::vector<std::vector<int32_t>> stop_ids_;  // theirs
  std::vector<int32_t> common_stop_ids_;        // what ends every one of them
  Sampling sampling_;
  bool needles_;
  std::vector<Outcome> outcomes_;  // [cases]; empty before the first run()
};

// Whether the spec's key `needles` asks for their rows.
bool needles_of(const Spec& spec);

// How answers are drawn: the options of the spec's key `sampling`, without its seed.
Sampling read_sampling(Params& params);
// The same of a spec. UserError.
Sampling sampling_of(const Spec& spec);

}  // namespace kv
