#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kv {

// How a generated answer is graded against the right ones, from 0 to 1.
enum class AnswerMetric : uint8_t {
  kExactMatch,
  kSubstringMatch,     // share of the answers that occur: RULER's string_match_all
  kSubstringMatchAny,  // whether one of them does: RULER's string_match_part, for QA
  kTokenF1,
  kRougeL,
  kEditSimilarity,
};

// "exact_match", ... as in rows and specs; the second throws UserError that lists them.
std::string_view metric_name(AnswerMetric metric);
AnswerMetric find_answer_metric(std::string_view name);

// The metric (sim/tasks/text_match.h) over all answers: their mean for substring_match, their best for the others, as
// the field does. Requires at least one answer. For every metric here an empty prediction has grade 1 for an empty
// answer, and where only one of the two is empty (after the metric's normalisation) the grade is 0.
double grade(AnswerMetric metric, std::string_view prediction, std::span<const std::string> answers);

}  // namespace kv
