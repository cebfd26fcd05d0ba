#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/tasks/task.h"

namespace kv {

using ByteRange = std::pair<size_t, size_t>;

// Writes a TaskText from front to back.
class TextWriter {
 public:
  // Appends text and says where it stands.
  ByteRange add(std::string_view text, Label label);

  // `query` was added last of all queries.
  void link(ByteRange query, std::vector<ByteRange> sources);

  // Appends a question and the answer prefix, both labelled so; the text from here to `expect` is its answer.
  void ask(std::string_view question, std::string_view prefix);

  // The answer to the last question ends here; `answers` is what a right one holds.
  void expect(std::vector<std::string> answers);

  // The document that the text was drawn from.
  void name_document(std::string_view document) { result_.document = document; }

  size_t size() const { return result_.text.size(); }
  TaskText take() { return std::move(result_); }

 private:
  TaskText result_;
};

// Text that a task draws, and whose it is.
struct DrawnText {
  std::string text;
  std::string document;  // Document::source; empty where it is of several documents, or of none
};

// A stretch of about `chars` bytes of one document, uniformly placed, on character boundaries; a word cut at the front
// is dropped. Throws UserError where no document is that long.
DrawnText draw_text(const std::vector<Document>& documents, size_t chars, Random& random);

// Draws a text as draw_text, from books (80 %) or code, or from what the option says. Where it says nothing and no code
// is long enough, from books; where no book is long enough, several one after the other. Throws UserError for
// Hay::kNeedles, which only tasks with needles know.
DrawnText draw_hay(const TaskDraw& draw);

// A statement to be put into hay, before the byte at `at`.
struct Insertion {
  size_t at;
  std::string text;
};

// After the first full stop or line end behind `from`, so that statements stand between sentences; else the end.
size_t sentence_boundary(std::string_view hay, size_t from);

// Writes hay with the statements in order of `at` (ties in the given order), each after a space. Returns where each of
// `insertions`, in the given order, stands; statements get the label needle, the rest context.
std::vector<ByteRange> write_with_insertions(TextWriter& writer, std::string_view hay,
                                             const std::vector<Insertion>& insertions);

inline constexpr int kMostDistractors = 10'000;

// The option, or `otherwise`; throws UserError where the option lies outside [least, most].
int option_or(std::optional<int> option, std::string_view name, int least, int most, int otherwise);

// The reference model's `<|question|>...` with the answer prefix `<|answer|>`.
void write_question(TextWriter& writer, std::string_view question);

// The neutral wording's "Question: ..." on a line of its own, and "Answer: ..." that goes on with the answer.
void ask_plainly(TextWriter& writer, std::string_view question, std::string_view prefix);

}  // namespace kv
