#include "sim/tasks/jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "sim/model/tokenizer/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/shipped_texts.h"

namespace kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

JsonlData read(const std::string& text) {
  std::istringstream stream(text);
  return read_jsonl(stream, "x.jsonl");
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::string row(const std::string& context, const std::string& question) {
  return R"({"context":")" + context + R"(","question":")" + question +
         R"(","answer_prefix":"A:","answers":["1"],"max_new_tokens":8})" + "\n";
}

TEST(Jsonl, ReadsEveryKeyAndPassesOverOthers) {
  const JsonlData data = read(
      R"({"context":"c","question":"q","answer_prefix":"p","answers":["a","b"],"max_new_tokens":5,"task":"t","_id":7})");
  ASSERT_EQ(data.contexts.size(), 1u);
  EXPECT_TRUE(data.malformed.empty());
  EXPECT_EQ(data.contexts[0].task, "t");
  EXPECT_EQ(data.contexts[0].context, "c");
  const JsonlQuestion& question = data.contexts[0].questions.at(0);
  EXPECT_EQ(question.line, 1);
  EXPECT_EQ(question.question, "q");
  EXPECT_EQ(question.answer_prefix, "p");
  EXPECT_THAT(question.answers, ElementsAre("a", "b"));
  EXPECT_EQ(question.max_new_tokens, 5);
}

TEST(Jsonl, TakesOneAnswerAndKvpressesName) {
  const auto answers = [](const std::string& key) {
    const JsonlData data =
        read(R"({"context":"c","question":"q","answer_prefix":"","max_new_tokens":1.0,)" + key + "}");
    return data.contexts.at(0).questions.at(0).answers;
  };
  EXPECT_THAT(answers(R"("answers":"a")"), ElementsAre("a"));
  EXPECT_THAT(answers(R"("answer":"a")"), ElementsAre("a"));
  EXPECT_THAT(answers(R"("answer":["a","b"])"), ElementsAre("a", "b"));
  EXPECT_THAT(answers(R"("answer":"a","answers":["b"])"), ElementsAre("b"));
}

TEST(Jsonl, JoinsRowsOfOneContextThatFollowEachOther) {
  const JsonlData data =
      read(row("c", "1") + row("c", "2") + "\n" + row("d", "3") + "{\n" + row("d", "4") + row("c", "5"));
  ASSERT_EQ(data.contexts.size(), 3u);
  std::vector<std::vector<int>> lines;
  for (const JsonlContext& context : data.contexts) {
    lines.emplace_back();
    for (const JsonlQuestion& question : context.questions) lines.back().push_back(question.line);
  }
  // Line 3 is blank, line 5 malformed; the context of lines 1 and 2 comes again in line 7.
  EXPECT_THAT(lines, ElementsAre(ElementsAre(1, 2), ElementsAre(4, 6), ElementsAre(7)));
  ASSERT_EQ(data.malformed.size(), 1u);
  EXPECT_EQ(data.malformed[0].line, 5);
}

TEST(Jsonl, NamesTheLineAndTheReasonOfWhatIsMalformed) {
  const auto reason = [](const std::string& line) {
    const JsonlData data = read(row("c", "q") + line + "\n" + row("c", "q"));
    EXPECT_EQ(data.contexts.at(0).questions.size(), 2u) << "the rest is used: " << line;
    return data.malformed.size() == 1 ? data.malformed[0].reason : "";
  };
  const auto with = [](const std::string& keys) {
    return R"({"context":"c","question":"q","answer_prefix":"p",)" + keys + "}";
  };
  EXPECT_THAT(reason("{"), HasSubstr("x.jsonl:2: not valid JSON"));
  EXPECT_EQ(reason("7"), "x.jsonl:2: 7, expected an object");
  EXPECT_EQ(reason("{}"), "x.jsonl:2: \"context\" is missing");
  EXPECT_EQ(reason(R"({"context":""})"), "x.jsonl:2: \"context\" is \"\", expected text");
  EXPECT_EQ(reason(R"({"context":["c"]})"), "x.jsonl:2: \"context\" is [\"c\"], expected a string");
  EXPECT_EQ(reason(R"({"context":"c","context":"d"})"), "x.jsonl:2: key \"context\" occurs twice");
  EXPECT_EQ(reason(with(R"("max_new_tokens":1)")), "x.jsonl:2: \"answers\" is missing");
  EXPECT_EQ(reason(with(R"("max_new_tokens":1,"answers":[])")),
            "x.jsonl:2: \"answers\" is [], expected at least one answer");
  EXPECT_THAT(reason(with(R"("max_new_tokens":1,"answers":["a"," "])")), HasSubstr("none of them empty"));
  EXPECT_THAT(reason(with(R"("max_new_tokens":1,"answer":"")")), HasSubstr("\"answer\" is \"\", expected a string or"));
  EXPECT_THAT(reason(with(R"("max_new_tokens":1,"answers":[1])")), HasSubstr("\"answers\" is [1]"));
  EXPECT_THAT(reason(with(R"("answers":"a")")), HasSubstr("\"max_new_tokens\" is missing"));
  for (const char* count : {"0", "-1", "1.5", "1048577", "\"8\"", "null", "true"})
    EXPECT_THAT(
        reason(with(R"("answers":"a","max_new_tokens":)" + std::string(count))),
        HasSubstr(std::string("\"max_new_tokens\" is ") + count + ", expected a whole number from 1 to 1048576"));
  EXPECT_THAT(reason(with(R"("answers":"a","max_new_tokens":1,"task":3)")), HasSubstr("\"task\" is 3"));
  EXPECT_THAT(reason(R"({"context":"c","question":"","answer_prefix":"","answers":"a","max_new_tokens":1})"),
              HasSubstr("are both empty"));
  EXPECT_THAT(reason("{\"context\":\"\xff\"}"), HasSubstr("not valid JSON"));
}

TEST(Jsonl, RefusesAFileWithoutAUsableRow) {
  EXPECT_EQ(error_of(""), "x.jsonl: is empty, expected one JSON object a line");
  EXPECT_EQ(error_of("\n \n"), "x.jsonl: is empty, expected one JSON object a line");
  EXPECT_EQ(error_of("\n7\n8\n"), "x.jsonl:2: 7, expected an object; none of 2 lines can be used");
  EXPECT_THROW(load_jsonl("/nowhere/x.jsonl"), UserError);
}

TEST(Jsonl, ReadsLongLines) {
  const std::string context(3'000'000, 'x');
  const JsonlData data = read(row(context, "q") + row(context, "r"));
  ASSERT_EQ(data.contexts.size(), 1u);
  EXPECT_EQ(data.contexts[0].context.size(), context.size());
  EXPECT_EQ(data.contexts[0].questions.size(), 2u);
}

TEST(Jsonl, MakesAnExamOfAContext) {
  const JsonlData data = read(
      R"({"context":"Ann is 7.\n","question":"How old is Ann?\n","answer_prefix":"Ann is","answers":["7"],"max_new_tokens":3,"task":"qa_1"})"
      "\n"
      R"({"context":"Ann is 7.\n","question":"How old is Ann?","answer_prefix":"","answers":["7"],"max_new_tokens":4,"task":"qa_1"})");
  const Exam exam = make_exam(data.contexts.at(0), 0, ref::shipped_tokenizer());
  EXPECT_EQ(exam.name, "qa_1-1");
  EXPECT_EQ(exam.metric, AnswerMetric::kSubstringMatchAny);
  EXPECT_FALSE(exam.one_line);
  EXPECT_EQ(exam.context.front(), 0);
  EXPECT_EQ(ref::shipped_tokenizer().decode(std::span(exam.context).subspan(1)), "Ann is 7.\n");
  ASSERT_EQ(exam.questions.size(), 2u);
  EXPECT_EQ(ref::shipped_tokenizer().decode(exam.questions[0].ids), "How old is Ann?\n");
  EXPECT_EQ(ref::shipped_tokenizer().decode(exam.questions[0].prefix), "Ann is");
  EXPECT_EQ(exam.questions[0].max_new_tokens, 3);
  // Something has to be continued: the last token of the question.
  EXPECT_EQ(ref::shipped_tokenizer().decode(exam.questions[1].ids), "How old is Ann");
  EXPECT_EQ(ref::shipped_tokenizer().decode(exam.questions[1].prefix), "?");
}

TEST(Jsonl, GradesByTheShareOfAnswersUnlessTheTaskIsQa) {
  const Exam exam = make_exam(read(row("c", "q")).contexts.at(0), 0, ref::shipped_tokenizer());
  EXPECT_EQ(exam.metric, AnswerMetric::kSubstringMatch);
  EXPECT_EQ(exam.name, "line-1");
}

}  // namespace
}  // namespace kv
