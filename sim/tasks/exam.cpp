#include "sim/tasks/exam.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/error.h"
#include "sim/model/tokenizer/tokenizer.h"
#include "sim/model/tokenizer/unicode.h"
#include "sim/tasks/output_rates.h"

namespace kv {
namespace {

int room_for(size_t answer_tokens) {
  constexpr size_t kLeastSlack = 8;
  return static_cast<int>(answer_tokens + std::max(kLeastSlack, answer_tokens / 2));
}

bool is_one_line(std::string_view answer) { return answer.find('\n') == answer.size() - 1; }

// Tokens at the end of the context may be others than those of the whole text, where the question goes on: a question
// with sources among them has none.
void take_sources(const DrawnTask& drawn, Exam& exam) {
  const std::vector<int32_t>& ids = drawn.sample.ids;
  const auto same = std::mismatch(exam.context.begin(), exam.context.end(), ids.begin(), ids.end()).first;
  for (size_t q = 0; q < exam.questions.size(); ++q) {
    const QuestionSpan& span = drawn.text.questions[q];
    auto& sources = exam.questions[q].sources;
    for (size_t i = 0; i < drawn.text.links.size(); ++i) {
      const UsefulLink& link = drawn.text.links[i];
      if (link.query_begin < span.begin || link.query_begin >= span.end) continue;
      const auto& more = drawn.sample.links[i].sources;
      sources.insert(sources.end(), more.begin(), more.end());
    }
    if (std::any_of(sources.begin(), sources.end(),
                    [&](const auto& source) { return source.second > same - exam.context.begin(); })) {
      sources.clear();
    }
  }
}

int32_t mark_id(std::string_view mark, const Tokenizer& tokenizer) {
  const std::vector<int32_t> ids = tokenizer.encode(mark);
  if (ids.size() == 1) return ids.front();
  throw UserError(fmt::format("the tokenizer has no token {}, a mark of the chat template", mark));
}

void refuse_marks(std::span<const int32_t> ids, int32_t start, int32_t end) {
  if (std::none_of(ids.begin(), ids.end(), [&](int32_t id) { return id == start || id == end; })) return;
  throw UserError("a text holds a mark of the chat template, expected plain text");
}

}  // namespace

Exam exam_of(const TaskText& text, int32_t first_token, const Tokenizer& tokenizer) {
  if (text.questions.empty()) throw UserError("the text asks no question, so there is nothing to answer");
  const auto part = [&](size_t begin, size_t end) { return std::string_view(text.text).substr(begin, end - begin); };
  Exam exam;
  exam.context = tokenizer.encode(part(0, text.questions.front().begin));
  exam.context.insert(exam.context.begin(), first_token);
  exam.document = text.document;
  exam.one_line = true;
  for (const QuestionSpan& question : text.questions) {
    const std::string_view answer = part(question.answer, question.end);
    const std::vector<int32_t> expected = tokenizer.encode(answer);
    exam.questions.push_back({tokenizer.encode(part(question.begin, question.prefix)),
                              tokenizer.encode(part(question.prefix, question.answer)), question.answers,
                              room_for(expected.size()), expected});
    exam.one_line = exam.one_line && is_one_line(answer);
  }
  return exam;
}

Exam make_exam(const TaskRequest& request, const Tokenizer& tokenizer, const TextData& data) {
  TaskRequest bounded = request;
  if (!bounded.length) bounded.length = Length::kAtMost;
  const DrawnTask drawn = draw_task(bounded, tokenizer, data);
  if (drawn.text.questions.empty())
    throw UserError(fmt::format("task {} asks no question, so there is nothing to answer", request.task));
  Exam exam = exam_of(drawn.text, drawn.sample.ids.front(), tokenizer);
  exam.name = drawn.sample.name;
  exam.metric = find_task(request.task).metric;
  take_sources(drawn, exam);
  exam.one_line = exam.one_line && request.options.wording.value_or(Wording::kReference) == Wording::kReference;
  return exam;
}

void put_in_chat(Exam& exam, const ChatTemplate& chat, const Tokenizer& tokenizer) {
  const int32_t start = mark_id(ChatTemplate::kStart, tokenizer);
  const int32_t end = mark_id(ChatTemplate::kEnd, tokenizer);
  exam.context.erase(exam.context.begin());
  refuse_marks(exam.context, start, end);
  std::vector<int32_t> opening = tokenizer.encode(chat.opening());
  const auto moved = static_cast<int32_t>(opening.size()) - 1;
  exam.context.insert(exam.context.begin(), opening.begin(), opening.end());
  const std::vector<int32_t> closing = tokenizer.encode(ChatTemplate::closing());
  for (ExamQuestion& question : exam.questions) {
    refuse_marks(question.ids, start, end);
    question.prefix.insert(question.prefix.begin(), closing.begin(), closing.end());
    for (auto& [from, to] : question.sources) {
      from += moved;
      to += moved;
    }
  }
}

std::vector<int32_t> line_end_ids(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.has_token(id) && tokenizer.decode_token(id).find('\n') != std::string_view::npos) ids.push_back(id);
  return ids;
}

std::string answer_text(const Exam& exam, std::span<const int32_t> ids, std::span<const int32_t> stop_ids,
                        const Tokenizer& tokenizer) {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!tokenizer.has_token(ids[i])) continue;
    const std::string_view bytes = tokenizer.decode_token(ids[i]);
    const size_t line_end = bytes.find('\n');
    const bool stops = i + 1 == ids.size() && !is_truncated(ids, stop_ids);
    if (!stops)
      text += bytes;
    else if (line_end != bytes.npos)
      text += bytes.substr(0, line_end);
  }
  if (exam.one_line) text.resize(std::min(text.find('\n'), text.size()));
  return well_formed(text);
}

}  // namespace kv
