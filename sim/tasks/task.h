#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/random.h"
#include "sim/tasks/sample.h"
#include "sim/text_data.h"

namespace kv {

class Tokenizer;

enum class Hay { book, code };

// What a spec may fix of a task; what is left out is drawn from the distribution that the reference model was trained
// on. An option that the task does not list is refused.
struct TaskOptions {
  std::optional<int> needles = {};    // facts hidden in the text (keys)
  std::optional<int> values = {};     // values of each key; 2 and more are asked for as a list
  std::optional<int> questions = {};  // questions asked, at most what the text offers
  std::optional<int> chains = {};     // chains of variables
  std::optional<int> hops = {};       // assignments in a chain after the first
  std::optional<Hay> hay = {};        // what the facts are hidden in
};

struct Span {
  size_t begin = 0;
  size_t end = 0;
  Label label = Label::context;
};

// While bytes [query_begin, query_end) are read or predicted, the bytes of `sources` are the useful context.
struct UsefulLink {
  size_t query_begin = 0;
  size_t query_end = 0;
  std::vector<std::pair<size_t, size_t>> sources;
};

// A task before tokenization. Spans are in order and cover the text; links are in order of their query.
struct TaskText {
  std::string text;
  std::vector<Span> spans;
  std::vector<UsefulLink> links;
};

struct TaskDraw {
  size_t chars;  // about how long the text should be, in bytes
  Random& random;
  const TaskOptions& options;
  const TextData& data;
};

// How a text is brought to a number of tokens: cut at the end, or drawn shorter until its last answer fits.
enum class Fit { cut, whole };

struct Task {
  std::string name;
  std::string summary;               // one line
  std::vector<std::string> options;  // names of the TaskOptions it reads
  Fit fit;                           // what it does unless asked otherwise
  double chars_per_token;            // for the first attempt, with the reference tokenizer
  TaskText (*draw)(const TaskDraw&);
};

// A static object of each task's source file.
struct RegisterTask {
  explicit RegisterTask(Task task);
};

// By name.
std::vector<const Task*> all_tasks();

// Throws UserError that lists the known tasks.
const Task& find_task(std::string_view name);

enum class Length { exact, at_most };

inline constexpr int kMostTaskTokens = 1 << 20;

struct TaskRequest {
  std::string task;
  int tokens = 0;      // length of the sample
  uint64_t seed = 0;   // of the experiment
  uint64_t index = 0;  // of the sample: samples of one seed are independent
  TaskOptions options = {};
  std::optional<Length> length = {};        // default: exact where the task's text can be cut, else at_most
  std::optional<int32_t> first_token = {};  // default: the tokenizer's <|endoftext|>
};

// A pure function of its arguments. Token 0 is the first token (label context); then the task's text. `exact`: exactly
// `tokens` ids, cut at the end, never padded; only for tasks whose text can be cut. `at_most`: whole, its length
// close to and never above `tokens`. A token that overlaps a labelled range belongs to it (answer before question
// before needle before context). Throws UserError where the request cannot be met.
Sample make_sample(const TaskRequest& request, const Tokenizer& tokenizer, const TextData& data);

// Tokens of a TaskText, for texts made elsewhere. Throws UserError where the tokenizer rewrites the text (a normalizer
// or a prefix space), since labels could not be placed.
Sample tokenize_task(const TaskText& text, int32_t first_token, const Tokenizer& tokenizer);

}  // namespace kv
