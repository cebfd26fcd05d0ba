#include "sim/tasks/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/model/tokenizer/unicode.h"

namespace kv {
namespace {

bool any_of_length(const std::vector<Document>& documents, size_t chars) {
  return std::any_of(documents.begin(), documents.end(), [&](const Document& d) { return d.text.size() >= chars; });
}

// Whole sentences, about the same length for every sample.
std::string repeated_sentences(size_t chars) {
  static const std::array<std::string_view, 6> kSentences = {
      "Rain fell on the roofs of the town.",    "A lamp burned behind one window.",
      "The road lay empty in both directions.", "Water ran along the wall and down the steps.",
      "Nobody came, and nobody went away.",     "Then the night was quiet for a while."};
  std::string text;
  for (size_t i = 0; text.size() < chars; ++i) {
    if (i > 0) text += ' ';
    text += kSentences[i % kSentences.size()];
  }
  return text;
}

std::string joined_books(const TaskDraw& draw) {
  std::string text;
  for (const size_t i : draw.random.sample(draw.data.books.size(), draw.data.books.size())) {
    if (text.size() >= draw.chars) break;
    text += draw.data.books[i].text + "\n\n";
  }
  if (text.size() < draw.chars)
    throw UserError(fmt::format("text of {} bytes is asked for, but all books have {}", draw.chars, text.size()));
  text.resize(utf8_boundary(text, draw.chars));
  return text;
}

}  // namespace

ByteRange TextWriter::add(std::string_view text, Label label) {
  const size_t begin = result_.text.size();
  if (text.empty()) return {begin, begin};
  result_.text += text;
  const size_t end = result_.text.size();
  if (!result_.spans.empty() && result_.spans.back().label == label) {
    result_.spans.back().end = end;
  } else {
    result_.spans.push_back({begin, end, label});
  }
  return {begin, end};
}

void TextWriter::link(ByteRange query, std::vector<ByteRange> sources) {
  KV_CHECK(result_.links.empty() || result_.links.back().query_begin <= query.first);
  result_.links.push_back({query.first, query.second, std::move(sources)});
}

void TextWriter::ask(std::string_view question, std::string_view prefix) {
  const size_t begin = add(question, Label::kQuestion).first;
  const size_t middle = add(prefix, Label::kQuestion).first;
  result_.questions.push_back({begin, middle, size(), size(), {}});
}

void TextWriter::expect(std::vector<std::string> answers) {
  KV_CHECK(!result_.questions.empty() && !answers.empty());
  result_.questions.back().end = size();
  result_.questions.back().answers = std::move(answers);
}

DrawnText draw_text(const std::vector<Document>& documents, size_t chars, Random& random) {
  std::vector<const Document*> fitting;
  size_t longest = 0;
  for (const Document& document : documents) {
    longest = std::max(longest, document.text.size());
    if (document.text.size() >= chars) fitting.push_back(&document);
  }
  if (fitting.empty())
    throw UserError(fmt::format("text of {} bytes is asked for, but the longest document has {}", chars, longest));
  const Document& document = *random.choice(fitting);
  const std::string& text = document.text;
  const size_t begin = utf8_boundary(text, random.below(std::max<size_t>(1, text.size() - chars)));
  const size_t end = utf8_boundary(text, begin + chars);
  std::string_view drawn = std::string_view(text).substr(begin, end - begin);
  constexpr size_t kLongestCutWord = 80;
  const size_t space = drawn.find(' ');
  if (space < kLongestCutWord) drawn.remove_prefix(space + 1);
  return {std::string(drawn), document.source};
}

DrawnText draw_hay(const TaskDraw& draw) {
  if (draw.options.hay == Hay::kNoise) return {repeated_sentences(draw.chars), {}};
  if (draw.options.hay == Hay::kNeedles)
    throw UserError("hay needles is for tasks with needles, expected book, code or noise");
  const bool code = draw.options.hay ? *draw.options.hay == Hay::kCode
                                     : !draw.random.chance(0.8) && any_of_length(draw.data.code, draw.chars);
  if (!code && !any_of_length(draw.data.books, draw.chars)) return {joined_books(draw), {}};
  return draw_text(code ? draw.data.code : draw.data.books, draw.chars, draw.random);
}

size_t sentence_boundary(std::string_view hay, size_t from) {
  const size_t found = std::min(hay.find(". ", from), hay.find('\n', from));
  return found == hay.npos ? hay.size() : found + 1;
}

std::vector<ByteRange> write_with_insertions(TextWriter& writer, std::string_view hay,
                                             const std::vector<Insertion>& insertions) {
  std::vector<size_t> order(insertions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return insertions[a].at < insertions[b].at; });
  std::vector<ByteRange> places(insertions.size());
  size_t last = 0;
  for (const size_t i : order) {
    writer.add(hay.substr(last, insertions[i].at - last), Label::kContext);
    writer.add(" ", Label::kContext);
    places[i] = writer.add(insertions[i].text, Label::kNeedle);
    last = insertions[i].at;
  }
  writer.add(hay.substr(last), Label::kContext);
  writer.add("\n", Label::kContext);
  return places;
}

int option_or(std::optional<int> option, std::string_view name, int least, int most, int otherwise) {
  if (!option) return otherwise;
  if (*option < least || *option > most)
    throw UserError(fmt::format("option {} is {}, expected {} to {}", name, *option, least, most));
  return *option;
}

void write_question(TextWriter& writer, std::string_view question) {
  writer.ask(fmt::format("<|question|>{}", question), "<|answer|>");
}

void ask_plainly(TextWriter& writer, std::string_view question, std::string_view prefix) {
  writer.ask(fmt::format("Question: {}\n", question), fmt::format("Answer: {}", prefix));
}

}  // namespace kv
