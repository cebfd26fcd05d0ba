#include "sim/tasks/exam.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "sim/model/tokenizer/tokenizer.h"
#include "sim/model/tokenizer/unicode.h"
#include "sim/tasks/draw_task.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"
#include "tests/support/shipped_texts.h"

namespace kv {
namespace {

using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string>;

Exam exam(const std::string& task, int tokens, TaskOptions options = {}) {
  return make_exam({.task = task, .tokens = tokens, .seed = 3, .options = options}, ref::shipped_tokenizer(),
                   ref::shipped_texts());
}

std::string decode(const Ids& ids) { return ref::shipped_tokenizer().decode(ids); }

void append(Ids& ids, const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); }

std::vector<std::string> asking_tasks() {
  std::vector<std::string> names;
  for (const Task* task : all_tasks())
    if (task->name != "book" && task->name != "code" && task->name != "math") names.push_back(task->name);
  return names;
}

class EveryAskingTask : public testing::TestWithParam<std::string> {};

TEST_P(EveryAskingTask, IsTheSampleCutIntoContextQuestionsAndAnswers) {
  const TaskRequest request{.task = GetParam(), .tokens = 900, .seed = 3, .length = Length::kAtMost};
  const DrawnTask drawn = draw_task(request, ref::shipped_tokenizer(), ref::shipped_texts());
  const Exam exam = make_exam(request, ref::shipped_tokenizer(), ref::shipped_texts());
  EXPECT_EQ(exam.name, drawn.sample.name);
  EXPECT_EQ(exam.metric, find_task(GetParam()).metric);
  ASSERT_EQ(exam.questions.size(), drawn.text.questions.size());
  Ids whole = exam.context;
  EXPECT_EQ(static_cast<int32_t>(whole.size()), drawn.sample.context_tokens);
  for (size_t i = 0; i < exam.questions.size(); ++i) {
    const QuestionSpan& span = drawn.text.questions[i];
    const std::string answer = drawn.text.text.substr(span.answer, span.end - span.answer);
    const ExamQuestion& question = exam.questions[i];
    EXPECT_EQ(question.prefix, Ids{*ref::shipped_tokenizer().token_id("<|answer|>")});
    append(whole, question.ids);
    append(whole, question.prefix);
    append(whole, ref::shipped_tokenizer().encode(answer));
    EXPECT_GE(question.max_new_tokens, static_cast<int>(ref::shipped_tokenizer().encode(answer).size()) + 8);
    EXPECT_EQ(question.answers, span.answers);
    EXPECT_EQ(grade(exam.metric, answer, question.answers), 1) << answer;
  }
  EXPECT_EQ(whole, drawn.sample.ids);
  EXPECT_EQ(exam.one_line, GetParam() != "reason");
}

INSTANTIATE_TEST_SUITE_P(Tasks, EveryAskingTask, testing::ValuesIn(asking_tasks()), [](const auto& task) {
  std::string name = task.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Exam, AsksForLinesOfItsContext) {
  const Exam kv_exam = exam("kv", 600, {.questions = 3});
  ASSERT_EQ(kv_exam.questions.size(), 3u);
  for (const ExamQuestion& question : kv_exam.questions) {
    const std::string key = decode(question.ids).substr(std::string("<|question|>").size());
    EXPECT_NE(decode(kv_exam.context).find(key + ": " + question.answers.at(0) + "\n"), std::string::npos);
  }
}

// What a question's sources hold, in the text.
std::string sources_of(const Exam& from, const ExamQuestion& question) {
  std::string text;
  for (const auto& [begin, end] : question.sources) text += decode(Ids(&from.context[begin], &from.context[end]));
  return text;
}

TEST(Exam, KnowsWhereItsAnswersStand) {
  for (const Wording wording : {Wording::kReference, Wording::kNeutral}) {
    for (const char* task : {"needle", "niah-multivalue", "niah-multiquery"}) {
      const Exam asked = exam(task, 900, {.wording = wording});
      for (const ExamQuestion& question : asked.questions) {
        ASSERT_FALSE(question.sources.empty()) << task;
        for (const std::string& answer : question.answers) {
          EXPECT_NE(sources_of(asked, question).find(answer), std::string::npos) << task << ": " << answer;
        }
      }
    }
  }
  const Exam lines = exam("kv", 600, {.questions = 3});
  for (const ExamQuestion& question : lines.questions) {
    EXPECT_EQ(question.sources.size(), 1U);
    EXPECT_NE(sources_of(lines, question).find(": " + question.answers.at(0)), std::string::npos);
  }
}

TEST(Exam, OfANeutralWordingHasNoSpecialTokensAndNoLineStop) {
  for (const char* task : {"needle", "niah-multiquery", "variable-tracking", "vt", "cwe", "fwe"}) {
    const Exam neutral = exam(task, 900, {.wording = Wording::kNeutral});
    EXPECT_FALSE(neutral.one_line);
    for (const ExamQuestion& question : neutral.questions) {
      const std::string question_text = decode(question.ids);
      EXPECT_TRUE(question_text.starts_with("Question: ") && question_text.ends_with("\n")) << question_text;
      EXPECT_TRUE(decode(question.prefix).starts_with("Answer: ")) << task;
      for (const Ids* ids : {&question.ids, &question.prefix})
        EXPECT_TRUE(std::all_of(ids->begin(), ids->end(), [](int32_t id) { return id > 2; })) << task;
    }
    EXPECT_TRUE(std::all_of(neutral.context.begin() + 1, neutral.context.end(), [](int32_t id) { return id > 2; }))
        << task;
  }
}

// The reference tokenizer with two of its special tokens named as ChatML's marks.
Tokenizer chat_tokenizer() {
  std::string json = test::read_file(ref::source_path("experiments/models/reference/tokenizer.json"));
  for (const auto& [token, mark] :
       {std::pair("<|question|>", ChatTemplate::kStart), {"<|answer|>", ChatTemplate::kEnd}}) {
    for (size_t at; (at = json.find(token)) != json.npos;) json.replace(at, std::string_view(token).size(), mark);
  }
  return Tokenizer::from_json(json, "chat");
}

TEST(Exam, InAChatIsAUsersMessageAndTheBeginningOfAnAnswer) {
  const Tokenizer chat_words = chat_tokenizer();
  const TaskRequest request{
      .task = "niah-multikey-1", .tokens = 600, .seed = 3, .options = {.wording = Wording::kNeutral}};
  const Exam plain = make_exam(request, chat_words, ref::shipped_texts());
  Exam exam = plain;
  put_in_chat(exam, {.system = "Be brief."}, chat_words);
  const Ids bare(plain.context.begin() + 1, plain.context.end());
  EXPECT_EQ(chat_words.decode(exam.context),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n" + chat_words.decode(bare));
  EXPECT_EQ(Ids(exam.context.end() - std::ssize(bare), exam.context.end()), bare) << "the texts keep their tokens";
  ASSERT_EQ(exam.questions.size(), plain.questions.size());
  for (size_t q = 0; q < exam.questions.size(); ++q) {
    EXPECT_EQ(exam.questions[q].ids, plain.questions[q].ids);
    EXPECT_EQ(chat_words.decode(exam.questions[q].prefix),
              "<|im_end|>\n<|im_start|>assistant\n" + chat_words.decode(plain.questions[q].prefix));
    ASSERT_EQ(exam.questions[q].sources.size(), plain.questions[q].sources.size());
    for (size_t i = 0; i < exam.questions[q].sources.size(); ++i) {
      const auto [begin, end] = exam.questions[q].sources[i];
      const auto [plain_begin, plain_end] = plain.questions[q].sources[i];
      EXPECT_EQ(Ids(exam.context.begin() + begin, exam.context.begin() + end),
                Ids(plain.context.begin() + plain_begin, plain.context.begin() + plain_end));
    }
  }
}

TEST(Exam, InAChatHoldsNoMarkOfTheTemplateAndNeedsTokensForThem) {
  const Tokenizer chat_words = chat_tokenizer();
  const auto refusal = [&](Exam exam, const Tokenizer& words) {
    try {
      put_in_chat(exam, {}, words);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const Exam good{.name = "", .context = {0, 70}, .questions = {{.ids = {70}, .prefix = {70}, .answers = {}}}};
  EXPECT_EQ(refusal(good, chat_words), "none");
  Exam marked = good;
  marked.context.push_back(2);
  EXPECT_EQ(refusal(marked, chat_words), "a text holds a mark of the chat template, expected plain text");
  marked = good;
  marked.questions[0].ids.push_back(1);
  EXPECT_EQ(refusal(marked, chat_words), "a text holds a mark of the chat template, expected plain text");
  EXPECT_EQ(refusal(good, ref::shipped_tokenizer()),
            "the tokenizer has no token <|im_start|>, a mark of the chat template");
}

TEST(Exam, NeedsAQuestionAndAWholeText) {
  const auto error = [](const TaskRequest& request) -> std::string {
    try {
      make_exam(request, ref::shipped_tokenizer(), ref::shipped_texts());
    } catch (const UserError& caught) {
      return caught.what();
    }
    return "";
  };
  EXPECT_EQ(error({.task = "book", .tokens = 300}), "task book asks no question, so there is nothing to answer");
  EXPECT_NE(error({.task = "kv", .tokens = 300, .length = Length::kExact}).find("expected at_most"), std::string::npos);
}

TEST(LineEnds, AreAllTokensWithALineFeed) {
  const Ids ids = line_end_ids(ref::shipped_tokenizer());
  const auto holds = [&](const char* bytes) {
    return std::binary_search(ids.begin(), ids.end(), ref::shipped_tokenizer().token_id(bytes).value());
  };
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  EXPECT_TRUE(holds("\n"));
  EXPECT_TRUE(holds(".\n"));
  EXPECT_FALSE(holds("."));
  EXPECT_FALSE(holds("<|endoftext|>"));
}

TEST(AnswerText, EndsBeforeTheStopAndItsLineFeed) {
  const Ids stops = {0, *ref::shipped_tokenizer().token_id("\n"), *ref::shipped_tokenizer().token_id(".\n")};
  const auto text = [&](bool one_line, const char* answer, const Ids& after = {}) {
    Exam exam;
    exam.one_line = one_line;
    Ids ids = ref::shipped_tokenizer().encode(answer);
    append(ids, after);
    return answer_text(exam, ids, stops, ref::shipped_tokenizer());
  };
  EXPECT_EQ(text(true, "is 47.\n"), "is 47.");
  EXPECT_EQ(text(true, "is 47", {0}), "is 47") << "<|endoftext|> is no part of the answer";
  EXPECT_EQ(text(true, "is 47\nmore"), "is 47");
  EXPECT_EQ(text(false, "is 47\nmore"), "is 47\nmore");
  EXPECT_EQ(text(false, "one\n\ntwo.\n"), "one\n\ntwo.");
  EXPECT_EQ(text(true, "is", {1 << 20}), "is") << "an id of a padded vocabulary";
  EXPECT_EQ(text(true, ""), "");
  EXPECT_EQ(text(true, "", {0}), "");
  Ids amid =
      ref::shipped_tokenizer().encode("\U0001D11E");  // of four bytes, for which the vocabulary has no single token
  ASSERT_GT(amid.size(), 1U);
  amid.pop_back();
  const std::string cut = text(true, "is ", amid);
  EXPECT_EQ(cut.substr(0, 6), "is \uFFFD") << "an answer that ends amid a character";
  EXPECT_FALSE(first_invalid_utf8(cut).has_value());
}

}  // namespace
}  // namespace kv
