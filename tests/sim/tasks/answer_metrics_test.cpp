#include "sim/tasks/answer_metrics.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/error.h"
#include "sim/tasks/output_rates.h"
#include "sim/tasks/text_match.h"

namespace kv {
namespace {

using Strings = std::vector<std::string>;

TEST(AnswerMetrics, HaveNamesThatAreFoundAgain) {
  for (const AnswerMetric metric :
       {AnswerMetric::kExactMatch, AnswerMetric::kSubstringMatch, AnswerMetric::kSubstringMatchAny,
        AnswerMetric::kTokenF1, AnswerMetric::kRougeL, AnswerMetric::kEditSimilarity})
    EXPECT_EQ(find_answer_metric(metric_name(metric)), metric);
  try {
    find_answer_metric("f1");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "answer metric f1 is unknown, expected one of exact_match, substring_match, substring_match_any, "
                 "token_f1, rouge_l, edit_similarity");
  }
}

TEST(ExactMatch, SeesCaseAndInnerSpacesButNotTheEnds) {
  EXPECT_EQ(exact_match(" 4711\n", "4711"), 1);
  EXPECT_EQ(exact_match("Paris", "paris"), 0);
  EXPECT_EQ(exact_match("a  b", "a b"), 0);
  EXPECT_EQ(exact_match("4711.", "4711"), 0);
  EXPECT_EQ(grade(AnswerMetric::kExactMatch, "b", Strings{"a", "b"}), 1) << "the best of the answers";
}

TEST(SubstringMatch, IsTheShareOfAnswersThatOccur) {
  // FOO and bar occur, qux does not: 2 of 3.
  EXPECT_DOUBLE_EQ(grade(AnswerMetric::kSubstringMatch, "It is foo, and Bar.", Strings{"FOO", "bar", "qux"}), 2.0 / 3);
  EXPECT_EQ(grade(AnswerMetric::kSubstringMatchAny, "It is foo, and Bar.", Strings{"FOO", "qux"}), 1);
  EXPECT_EQ(grade(AnswerMetric::kSubstringMatchAny, "It is foo", Strings{"qux", "quux"}), 0);
  EXPECT_EQ(contains_answer("91234", "123"), 1) << "no word boundary is asked for";
  EXPECT_EQ(contains_answer("12", "123"), 0);
}

TEST(TokenF1, DropsCasePunctuationAndArticles) {
  // Predicted: cat sat on mat (4); right: cat sat (2); common 2: P = 1/2, R = 1, F = 2/3.
  EXPECT_DOUBLE_EQ(token_f1("The cat sat, on a mat!", "the Cat sat."), 2.0 / 3);
  // Predicted: b b c (3); right: b c c (3); common b c: 2·2 / 6.
  EXPECT_DOUBLE_EQ(token_f1("b b c", "b c c"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(token_f1("well-known", "wellknown"), 1);
  EXPECT_DOUBLE_EQ(token_f1("theory", "the ory"), 0) << "only whole words are articles";
  EXPECT_DOUBLE_EQ(token_f1("the", "a"), 1) << "both are empty once normalised";
  EXPECT_DOUBLE_EQ(token_f1("the", "x"), 0);
  EXPECT_DOUBLE_EQ(grade(AnswerMetric::kTokenF1, "x", Strings{"y", "x z"}), 2.0 / 3) << "the best of the answers";
}

TEST(RougeL, IsTheFMeasureOfTheLongestCommonSubsequence) {
  // Lin 2004: "police killed the gunman" against "police kill the gunman" (LCS 3 of 4 and 4) and "the gunman kill
  // police" (LCS 2).
  EXPECT_DOUBLE_EQ(rouge_l("police kill the gunman", "police killed the gunman"), 0.75);
  EXPECT_DOUBLE_EQ(rouge_l("the gunman kill police", "police killed the gunman"), 0.5);
  // LCS a b c of 5 and 3 words: P = 3/5, R = 1, F = 6/8.
  EXPECT_DOUBLE_EQ(rouge_l("a x b y c", " a  b\nc "), 0.75);
  EXPECT_DOUBLE_EQ(rouge_l("A", "a"), 0);
  EXPECT_DOUBLE_EQ(grade(AnswerMetric::kRougeL, "a b", Strings{"c", "a b"}), 1);
}

TEST(EditSimilarity, IsOneMinusTheDistanceOverTheLongerLength) {
  // kitten to sitting: two replaced, one inserted, of 7 bytes.
  EXPECT_DOUBLE_EQ(edit_similarity("kitten", "sitting"), 1 - 3.0 / 7);
  EXPECT_DOUBLE_EQ(edit_similarity("sitting", "kitten"), 1 - 3.0 / 7);
  EXPECT_DOUBLE_EQ(edit_similarity("flaw", "lawn"), 0.5);
  EXPECT_DOUBLE_EQ(edit_similarity("abc", "xyz"), 0);
}

TEST(EditSimilarity, GradesTheFirstLineOfCodeAgainstAnAnswerOfOneLine) {
  const std::string prediction = "\n# next\nreturn x\nmore";
  EXPECT_EQ(first_code_line(prediction), "return x");
  EXPECT_EQ(first_code_line("// a\n`b`"), "// a\n`b`");
  EXPECT_EQ(first_code_line(""), "");
  EXPECT_EQ(first_code_line("\n\n"), "\n\n");
  EXPECT_DOUBLE_EQ(grade(AnswerMetric::kEditSimilarity, prediction, Strings{"return x"}), 1);
  EXPECT_DOUBLE_EQ(grade(AnswerMetric::kEditSimilarity, "a\nb", Strings{"a\nb"}), 1);
}

TEST(AnswerMetrics, TreatEmptyTextsAlike) {
  for (const AnswerMetric metric :
       {AnswerMetric::kExactMatch, AnswerMetric::kSubstringMatch, AnswerMetric::kSubstringMatchAny,
        AnswerMetric::kTokenF1, AnswerMetric::kRougeL, AnswerMetric::kEditSimilarity}) {
    SCOPED_TRACE(metric_name(metric));
    EXPECT_EQ(grade(metric, "", Strings{"word"}), 0);
    EXPECT_EQ(grade(metric, "word", Strings{""}), 0);
    EXPECT_EQ(grade(metric, "", Strings{""}), 1);
    EXPECT_EQ(grade(metric, "word", Strings{"word"}), 1);
  }
}

TEST(RepetitionRate, IsTheShareOfFourGramsSeenBefore) {
  EXPECT_EQ(repetition_rate({}), 0);
  EXPECT_EQ(repetition_rate(std::vector<int32_t>{5, 5, 5, 5}), 0) << "a single 4-gram";
  // 5555 three times: two of three occurred before.
  EXPECT_DOUBLE_EQ(repetition_rate(std::vector<int32_t>{5, 5, 5, 5, 5, 5}), 2.0 / 3);
  // 1234 2341 3412 4123 1234: the last occurred before.
  EXPECT_DOUBLE_EQ(repetition_rate(std::vector<int32_t>{1, 2, 3, 4, 1, 2, 3, 4}), 1.0 / 5);
  EXPECT_EQ(repetition_rate(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}), 0);
}

TEST(Truncation, IsAnOutputWithoutAStopId) {
  const std::vector<int32_t> stops = {0, 9};
  EXPECT_FALSE(is_truncated(std::vector<int32_t>{4, 9}, stops));
  EXPECT_TRUE(is_truncated(std::vector<int32_t>{9, 4}, stops));
  EXPECT_TRUE(is_truncated({}, stops));
}

}  // namespace
}  // namespace kv
