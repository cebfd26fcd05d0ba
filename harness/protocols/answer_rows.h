#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/protocols/needle_rows.h"
#include "harness/protocols/unit.h"
#include "harness/rows.h"
#include "harness/spec/case.h"
#include "harness/spec/spec.h"

namespace kv {

// Tasks that the full cache itself fails say nothing about a policy.
inline constexpr double kLeastFullAccuracy = 0.2;

// A question's, graded.
struct Answer {
  std::string text;
  double grade = 0;
  double repetition = 0;
  bool truncated = false;
  int tokens = 0;
};

// The answers of one sample and case.
struct AnswerSheet {
  std::vector<Answer> answers;  // [questions]
  double kept_mean = 0;
  int64_t kept_max = 0;
  double kv_bytes = 0;
  double cache_bytes = 0;
  std::vector<NeedleShare> needles;  // where the spec asks for them
  std::string error;                 // then nothing else counts
};

// A case's share of a batch of contexts.
struct AnswerTimes {
  double prefill_seconds = 0;
  double compress_seconds = 0;
  double answer_seconds = 0;

  void add(const AnswerTimes& other);
};

// Rows of one sample, whose part of the batch's times is `share`:
//   accuracy           mean grade of the sample's answers by the task's metric (sim/tasks/answer_metrics.h), in [0, 1]
//   answer             the grade of question x, with the answer as text
//   answer_tokens, repetition_rate, truncation_rate   means over its answers (sim/tasks/output_rates.h)
//   kept_tokens, kept_tokens_max   what is left of the context when the questions are asked, a head
//   kept_kv_bytes      of its pages: keys, values and positions, without a scorer's columns
//   cache_bytes        of its entries, with what the policy keeps for each (columns, expiry, bounds) and of the newest
//                      queries while it reads: a share of the full cache's keys, values and positions, as the metric
//                      cache_size has it; a context that was compressed once keeps neither columns nor queries
//   learned_bytes      of what a policy decides by, where it has learned (AnswerRunner)
//   prefill_time       of the batch, with the scoring for all its policies, shared evenly
//                      (a context that is pruned while it is read, is read for its case alone: all of that but cutting)
//   compress_time      scoring (within that) and cutting for the case, as under protocol latency; copying the context
//                      for its policy, which only a shared pass needs, is no part of it. 0 for the full cache
//   answer_time        the case's own
//   needle_kept        where the spec asks for it (harness/protocols/needle_rows.h)
void add_answer_rows(std::vector<Row>& rows, const Row& blank, const AnswerSheet& sheet, const AnswerTimes& times,
                     double share);

// Where the full cache's mean accuracy over a workload stays under the least, or there is none, turns the rows of every
// policy into one skipped row a sample that says so. What was skipped already keeps its reason. `rows` [cases], as
// AnswerRunner made them.
void gate_by_full_cache(const Spec& spec, std::span<const Case> cases, std::span<std::vector<Row>> rows);

}  // namespace kv
