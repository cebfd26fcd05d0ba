#pragma once

#include <filesystem>
#include <istream>
#include <string>
#include <vector>

#include "sim/tasks/exam.h"

namespace kv {

// A data set of questions on given contexts, one JSON object a line: the layout in which kvpress has its RULER and
// LongBench. Keys, all required but `task`:
//   context         text
//   question        text; may be empty where answer_prefix is not
//   answer_prefix   text; may be empty where question is not
//   answers         a string or a list of strings, none of them blank; kvpress' name `answer` is taken, too, where
//                   `answers` is not there
//   max_new_tokens  a whole number from 1 to 2^20
//   task            text; default: empty
// Other keys are allowed and not read, unlike in specs: data sets carry columns of their own. Blank lines are skipped.
struct JsonlQuestion {
  int line = 0;  // from 1
  std::string question;
  std::string answer_prefix;
  std::vector<std::string> answers;
  int max_new_tokens = 0;
};

// Rows of one task and context that follow each other.
struct JsonlContext {
  std::string task;
  std::string context;
  std::vector<JsonlQuestion> questions;  // at least one
};

struct JsonlProblem {
  int line = 0;
  std::string reason;  // one line, which begins with file:line
};

struct JsonlData {
  std::vector<JsonlContext> contexts;   // in the order of the file; at least one
  std::vector<JsonlProblem> malformed;  // lines that are left out
};

// Reads line by line. A malformed line stops nothing: it is listed, the rest is used. Throws UserError where nothing
// can be used or the file cannot be read. `name` stands in front of reasons.
JsonlData read_jsonl(std::istream& stream, const std::string& name);
JsonlData load_jsonl(const std::filesystem::path& file);

// Texts are tokenized each by itself, as kvpress does; no chat template is applied. Without an answer prefix, the last
// token of the question is the prefix. Graded by substring_match, tasks that begin with "qa" by substring_match_any, as
// in RULER; the metric of other data sets is the caller's to set. The name is that of the task and the first line.
// Throws UserError that names the line for text that the tokenizer cannot encode.
Exam make_exam(const JsonlContext& context, int32_t first_token, const Tokenizer& tokenizer);

}  // namespace kv
