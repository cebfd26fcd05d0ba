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

  size_t size() const { return result_.text.size(); }
  TaskText take() { return std::move(result_); }

 private:
  TaskText result_;
};

// A stretch of about `chars` bytes of one document, uniformly placed, on character boundaries; a word cut at the front
// is dropped. Throws UserError where no document is that long.
std::string draw_text(const std::vector<Document>& documents, size_t chars, Random& random);

// As draw_text, from books (80 %) or code, or from what the option says. Where it says nothing and no code is long
// enough, from books.
std::string draw_hay(const TaskDraw& draw);

// A statement to be put into hay, before the byte at `at`.
struct Insertion {
  size_t at;
  std::string text;
};

// Writes hay with the statements in order of `at` (ties in the given order), each after a space. Returns where each of
// `insertions`, in the given order, stands; statements get the label needle, the rest context.
std::vector<ByteRange> write_with_insertions(TextWriter& writer, std::string_view hay,
                                             const std::vector<Insertion>& insertions);

// The option, or `otherwise`; throws UserError where the option lies outside [least, most].
int option_or(std::optional<int> option, std::string_view name, int least, int most, int otherwise);

// The recipe's `<|question|>...<|answer|>` in two calls, so that answers can be linked.
void write_question(TextWriter& writer, std::string_view question);

}  // namespace kv
