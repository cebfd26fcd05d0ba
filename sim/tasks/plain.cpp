#include "sim/tasks/text.h"

namespace kv {
namespace {

TaskText plain(const std::string& text) {
  TextWriter writer;
  writer.add(text, Label::kContext);
  return writer.take();
}

TaskText plain(const DrawnText& drawn) {
  TaskText text = plain(drawn.text);
  text.document = drawn.document;
  return text;
}

TaskText draw_book(const TaskDraw& draw) { return plain(draw_text(draw.data.books, draw.chars, draw.random)); }

TaskText draw_code(const TaskDraw& draw) { return plain(draw_text(draw.data.code, draw.chars, draw.random)); }

// Word problems in random order until the text is long enough.
TaskText draw_math(const TaskDraw& draw) {
  std::string text;
  for (const size_t i : draw.random.sample(draw.data.math.size(), draw.data.math.size())) {
    if (text.size() >= draw.chars) break;
    text += draw.data.math[i].text;
  }
  return plain(text);
}

const RegisterTask kBook({.name = "book",
                          .summary = "prose of public-domain books",
                          .options = {},
                          .fit = Fit::kCut,
                          .chars_per_token = 3.9,
                          .draw = draw_book,
                          .has_answers = false});

const RegisterTask kCode({.name = "code",
                          .summary = "source code in several languages",
                          .options = {},
                          .fit = Fit::kCut,
                          .chars_per_token = 3.3,
                          .draw = draw_code,
                          .has_answers = false});

const RegisterTask kMath({.name = "math",
                          .summary = "GSM8K word problems with their solutions",
                          .options = {},
                          .fit = Fit::kCut,
                          .chars_per_token = 2.8,
                          .draw = draw_math,
                          .has_answers = false});

}  // namespace
}  // namespace kv
