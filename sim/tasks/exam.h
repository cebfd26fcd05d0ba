#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/model/chat_template.h"
#include "sim/tasks/answer_metrics.h"
#include "sim/tasks/draw_task.h"

namespace kv {

struct ExamQuestion {
  std::vector<int32_t> ids;     // the question as asked after the context; may be empty
  std::vector<int32_t> prefix;  // what the answer begins with, not to be generated: <|answer|>; at least one token
  std::vector<std::string> answers;
  int max_new_tokens = 0;
  std::vector<int32_t> expected{};  // the answer as the text has it; empty where only `answers` are known
  // Tokens [begin, end) of the context that the answer is read from (Link::sources); empty where they are unknown.
  std::vector<std::pair<int32_t, int32_t>> sources{};
};

// What a generation run needs of one sample: a context, and questions on it, each asked alone. Question-agnostic:
// the context is compressed once, then continued by `ids` and `prefix` of each question. Query-aware: `ids` belong to
// what is compressed.
struct Exam {
  std::string name;
  std::vector<int32_t> context;  // begins with the first token; not empty
  std::vector<ExamQuestion> questions;
  AnswerMetric metric = AnswerMetric::kExactMatch;
  std::string document = {};  // that the context was drawn from; empty: of several, or of none
  bool one_line = false;      // an answer ends with its line: generation also stops at line_end_ids
};

// The question and answer pairs of a task's text. Its parts are tokenized each by itself: where special tokens stand
// between them (the reference wording), context, question, prefix and answer are together the tokens of the whole text.
// max_new_tokens is the length of the answer in the text and half of it, at least 8, more: room for an answer in other
// words, not for rambling. one_line where every answer of the text is one line. Throws UserError for a text without
// questions.
Exam exam_of(const TaskText& text, int32_t first_token, const Tokenizer& tokenizer);

// The exam of the draw that make_sample makes, so the context is that of the sample, graded by the task's metric.
// Context and all questions with their answers together have at most request.tokens tokens. Never one_line in the
// neutral wording: a larger model may well begin a list on a new line. Throws UserError as make_sample, and for tasks
// that ask nothing.
Exam make_exam(const TaskRequest& request, const Tokenizer& tokenizer, const TextData& data);

// Puts an exam into an instruct model's chat: context and question become the user's message, and the answer's prefix
// begins the model's own. Beside the texts stand the template's tokens, with its system message; the exam's first token
// gives way to them. UserError where a text holds a mark of the template, or the tokenizer has no token for one.
void put_in_chat(Exam& exam, const ChatTemplate& chat, const Tokenizer& tokenizer);

// The stop ids of a one_line exam, to which the caller adds the model's own: every token with a line feed in it (".\n"
// is one token). Ascending.
std::vector<int32_t> line_end_ids(const Tokenizer& tokenizer);

// The text to be graded of an output: without a last id that is one of `stop_ids`, but with what a token of
// line_end_ids has before its line feed; of a one_line exam the first line. Ids without a token (a model's vocabulary
// may be padded) have no text. Well-formed UTF-8: a model can write bytes that belong to no character, or stop amid
// one; each such byte becomes U+FFFD.
std::string answer_text(const Exam& exam, std::span<const int32_t> ids, std::span<const int32_t> stop_ids,
                        const Tokenizer& tokenizer);

}  // namespace kv
