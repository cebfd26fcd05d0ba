#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/tasks/answer_metrics.h"
#include "sim/tasks/random.h"
#include "sim/tasks/sample.h"
#include "sim/tasks/text_data.h"

namespace kv {

enum class Hay {
  kBook,     // a stretch of one book; of several in random order where it is longer than each
  kCode,     // a stretch of one file
  kNoise,    // a few sentences, repeated
  kNeedles,  // facts of other keys, nothing else
};

// How a task is put into words.
enum class Wording {
  kReference,  // as the reference model was trained: <|question|>...<|answer|>
  kNeutral,    // plain English without special tokens: an introduction, "Question: ..." and "Answer: ..."
};

// What a spec may fix of a task; what is left out is drawn from the distribution that the reference model was trained
// on, or is what RULER has, in the tasks named after RULER's. An option that the task does not list is refused.
struct TaskOptions {
  std::optional<int> needles = {};      // facts hidden in the text (keys)
  std::optional<int> values = {};       // values of each key; 2 and more are asked for as a list
  std::optional<int> questions = {};    // questions asked, at most what the text offers
  std::optional<int> distractors = {};  // further facts, of keys that are never asked for
  std::optional<double> depth = {};     // where the facts that are asked for stand: 0 in front of the hay, 1 at its end
  std::optional<int> chains = {};       // chains of variables
  std::optional<int> hops = {};         // assignments in a chain after the first
  std::optional<Hay> hay = {};          // what the facts are hidden in
  std::optional<Wording> wording = {};  // default: reference
  // The share of the text that defines quantities before any is worked out, in (0, 0.2]; the trace goes round until the
  // text is full. Default: about a quarter, and the trace goes round once.
  std::optional<double> definitions = {};
};

struct Span {
  size_t begin = 0;
  size_t end = 0;
  Label label = Label::kContext;
};

// While bytes [query_begin, query_end) are read or predicted, the bytes of `sources` are the useful context.
struct UsefulLink {
  size_t query_begin = 0;
  size_t query_end = 0;
  std::vector<std::pair<size_t, size_t>> sources;
};

// A question of the text: bytes [begin, prefix) ask it, [prefix, answer) are the answer prefix, which the model is
// given, and [answer, end) is the answer as the text has it.
struct QuestionSpan {
  size_t begin = 0;
  size_t prefix = 0;
  size_t answer = 0;
  size_t end = 0;
  std::vector<std::string> answers;  // what a right answer holds, as AnswerMetric takes it
};

// A task before tokenization. Spans are in order and cover the text; links are in order of their query; questions,
// after the context that they share, in the order of the text.
struct TaskText {
  std::string text;
  std::vector<Span> spans;
  std::vector<UsefulLink> links;
  std::vector<QuestionSpan> questions = {};
  std::string document = {};  // where its hay or prose is from, Document::source; empty: of several, or of none
};

struct TaskDraw {
  size_t chars;  // about how long the text should be, in bytes
  Random& random;
  const TaskOptions& options;
  const TextData& data;
};

// How a text is brought to a number of tokens: cut at the end, or drawn shorter until its last answer fits.
enum class Fit { kCut, kWhole };

struct Task {
  std::string name;
  std::string summary;                              // one line
  std::vector<std::string> options;                 // names of the TaskOptions it reads
  Fit fit;                                          // what it does unless asked otherwise
  double chars_per_token;                           // for the first attempt, with the reference tokenizer
  AnswerMetric metric = AnswerMetric::kExactMatch;  // what its answers are graded by unless asked otherwise
  std::function<TaskText(const TaskDraw&)> draw;
  bool has_answers = true;  // its texts ask and answer
};

// A static object of each task's source file.
struct RegisterTask {
  explicit RegisterTask(Task task);
};

// Every task, sorted by name.
std::vector<const Task*> all_tasks();

// Throws UserError that says so for RULER's two QA types (qa-1, qa-2), which exist as data sets only.
void refuse_data_set_task(std::string_view name);

// Throws UserError that lists the known tasks, or as refuse_data_set_task.
const Task& find_task(std::string_view name);

}  // namespace kv
