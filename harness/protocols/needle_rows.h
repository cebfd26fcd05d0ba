#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "harness/rows.h"
#include "sim/policy/params.h"
#include "sim/replay/loop.h"
#include "sim/tasks/exam.h"

namespace kv {

// What of a question's needles a compressed context still holds.
struct NeedleShare {
  int layer = 0;  // as the model counts them
  int head = 0;   // KV head
  size_t question = 0;
  double kept = 0;  // of the tokens of ExamQuestion::sources, the share that is resident
};

// The option `heads` of the spec's key `needles`.
bool asks_for_needles(Params& params);

// Of sample `sequence` of a batch, every layer and KV head, for these questions; nothing of a question whose sources
// are not known.
std::vector<NeedleShare> needle_shares(Backend& backend, const SourceInfo& info, const LoopState& state, int sequence,
                                       const Exam& exam, std::span<const size_t> questions);

// One row a share: needle_kept, x = the question's number.
void add_needle_rows(std::vector<Row>& rows, const Row& blank, std::span<const NeedleShare> shares);

}  // namespace kv
