#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

// How a generated answer is graded against the right ones, from 0 to 1.
enum class AnswerMetric : uint8_t {
  exact_match,
  substring_match,      // share of the answers that occur: RULER's string_match_all
  substring_match_any,  // whether one of them does: RULER's string_match_part, for QA
  token_f1,
  rouge_l,
  edit_similarity,
};

// "exact_match", ... as in rows and specs; the second throws UserError that lists them.
std::string_view metric_name(AnswerMetric metric);
AnswerMetric find_answer_metric(std::string_view name);

// The metric over all answers: their mean for substring_match, their best for the others, as the field does. Requires
// at least one answer. For every metric here an empty prediction has grade 1 for an empty answer, and where only one of
// the two is empty (after the metric's normalisation) the grade is 0.
double grade(AnswerMetric metric, std::string_view prediction, std::span<const std::string> answers);

// The functions below work on bytes and fold the case of ASCII letters only, so a prediction may end inside a
// character; "white space" is ASCII's.

// 1 where both are equal without the white space at their ends. Case counts.
double exact_match(std::string_view prediction, std::string_view answer);

// 1 where the answer occurs in the prediction, whatever the case. "123" occurs in "91234": as in RULER, no word
// boundary is asked for.
double contains_answer(std::string_view prediction, std::string_view answer);

// Harmonic mean of precision and recall of the bag of words, as SQuAD 1.1 normalises: lower case, ASCII punctuation
// removed (not replaced: "well-known" is one word), then the words a, an and the.
double token_f1(std::string_view prediction, std::string_view answer);

// ROUGE-L (Lin 2004) with β = 1: harmonic mean of LCS/words of each side over words between white space, case kept, no
// stemming. The longest common subsequence takes memory linear in the answer.
// Deviation: the `rouge` package, which LongBench uses, joins the LCS of the answer's sentences and has β = P/R.
double rouge_l(std::string_view prediction, std::string_view answer);

// 1 − Levenshtein distance / longer length.
// Deviation: LongBench's fuzz.ratio is 1 − (insertions + deletions) / (sum of lengths).
double edit_similarity(std::string_view prediction, std::string_view answer);

// What LongBench compares of generated code: the first line, after line ends at the front, without `, # or //; the
// whole text where there is none. `grade` compares this by edit_similarity for an answer of one line.
std::string_view first_code_line(std::string_view text);

// Share of the output's n-grams (n = 4) that occurred before in it, overlapping ones included; 0 below n + 1 ids. A
// text that repeats one token forever tends to 1.
double repetition_rate(std::span<const int32_t> ids);

// Whether the output was cut by its length: its last id is none of `stop_ids`. An empty output was cut.
bool is_truncated(std::span<const int32_t> ids, std::span<const int32_t> stop_ids);

}  // namespace kv
