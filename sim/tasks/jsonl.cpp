#include "sim/tasks/jsonl.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/error.h"
#include "sim/io/regular_file.h"
#include "sim/io/strict_json.h"
#include "sim/model/tokenizer/tokenizer.h"

namespace kv {
namespace {

using nlohmann::json;

constexpr std::string_view kSpaces = " \t\n\r\f\v";

struct Row {
  std::string task;
  std::string context;
  JsonlQuestion question;
};

// One line's object; every error begins with `where`.
class RowReader {
 public:
  RowReader(const json& record, const std::string& where) : record_(record), where_(where) {}

  const json& at(const char* key) const {
    const auto found = record_.find(key);
    if (found == record_.end()) throw UserError(fmt::format("{}: \"{}\" is missing", where_, key));
    return *found;
  }

  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) fail(key, value, "a string");
    return value.get<std::string>();
  }

  std::vector<std::string> answers() const {
    const char* key = record_.contains("answers") || !record_.contains("answer") ? "answers" : "answer";
    const json& value = at(key);
    std::vector<std::string> answers;
    for (const json& item : value.is_array() ? value : json::array({value})) {
      if (!item.is_string() || item.get_ref<const std::string&>().find_first_not_of(kSpaces) == std::string::npos)
        fail(key, value, "a string or a list of strings, none of them empty");
      answers.push_back(item.get<std::string>());
    }
    if (answers.empty()) fail(key, value, "at least one answer");
    return answers;
  }

  int max_new_tokens() const {
    const json& value = at("max_new_tokens");
    const double count = value.is_number() ? value.get<double>() : 0;
    if (!(count >= 1 && count <= kMostTaskTokens && count == std::floor(count)))
      fail("max_new_tokens", value, fmt::format("a whole number from 1 to {}", kMostTaskTokens));
    return static_cast<int>(count);
  }

  [[noreturn]] void fail(const char* key, const json& value, std::string_view expected) const {
    throw UserError(fmt::format("{}: \"{}\" is {}, expected {}", where_, key, shown_json(value), expected));
  }

 private:
  const json& record_;
  const std::string& where_;
};

Row parse_row(const std::string& line, int number, const std::string& where) {
  const json record = parse_strict_json(line, where);
  if (!record.is_object()) throw UserError(fmt::format("{}: {}, expected an object", where, shown_json(record)));
  const RowReader reader(record, where);
  Row row;
  row.context = reader.text("context");
  if (row.context.empty()) reader.fail("context", record["context"], "text");
  row.question = {number, reader.text("question"), reader.text("answer_prefix"), reader.answers(),
                  reader.max_new_tokens()};
  if (row.question.question.empty() && row.question.answer_prefix.empty())
    throw UserError(fmt::format("{}: \"question\" and \"answer_prefix\" are both empty", where));
  if (record.contains("task")) row.task = reader.text("task");
  return row;
}

}  // namespace

JsonlData read_jsonl(std::istream& stream, const std::string& name) {
  JsonlData data;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(kSpaces) == std::string::npos) continue;
    try {
      Row row = parse_row(line, number, fmt::format("{}:{}", name, number));
      if (data.contexts.empty() || data.contexts.back().task != row.task || data.contexts.back().context != row.context)
        data.contexts.push_back({std::move(row.task), std::move(row.context), {}});
      data.contexts.back().questions.push_back(std::move(row.question));
    } catch (const UserError& error) {
      data.malformed.push_back({number, error.what()});
    }
  }
  if (stream.bad()) throw UserError(fmt::format("{}: cannot be read", name));
  if (!data.contexts.empty()) return data;
  if (data.malformed.empty()) throw UserError(fmt::format("{}: is empty, expected one JSON object a line", name));
  throw UserError(fmt::format("{}; none of {} lines can be used", data.malformed[0].reason, data.malformed.size()));
}

JsonlData load_jsonl(const std::filesystem::path& file) {
  std::istringstream stream(RegularFile(file).read());
  return read_jsonl(stream, file.string());
}

Exam make_exam(const JsonlContext& context, int32_t first_token, const Tokenizer& tokenizer) {
  const auto encode = [&](const std::string& text, int line) {
    try {
      return tokenizer.encode(text);
    } catch (const UserError& error) {
      throw UserError(fmt::format("line {}: {}", line, error.what()));
    }
  };
  Exam exam;
  const int first_line = context.questions.at(0).line;
  exam.name = fmt::format("{}-{}", context.task.empty() ? "line" : context.task, first_line);
  exam.metric = context.task.starts_with("qa") ? AnswerMetric::kSubstringMatchAny : AnswerMetric::kSubstringMatch;
  exam.context = encode(context.context, first_line);
  exam.context.insert(exam.context.begin(), first_token);
  for (const JsonlQuestion& source : context.questions) {
    ExamQuestion question{encode(source.question, source.line), encode(source.answer_prefix, source.line),
                          source.answers, source.max_new_tokens};
    if (question.prefix.empty()) {
      question.prefix = {question.ids.back()};
      question.ids.pop_back();
    }
    exam.questions.push_back(std::move(question));
  }
  return exam;
}

}  // namespace kv
