#pragma once

#include <string_view>
#include <vector>

namespace kv {

// The functions here work on bytes and fold the case of ASCII letters only, so a prediction may end inside a
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

// The stretches of text between white space.
std::vector<std::string_view> words_of(std::string_view text);

}  // namespace kv
