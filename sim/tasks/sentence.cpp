#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/error.h"
#include "sim/tasks/text.h"
#include "sim/tasks/text_match.h"

namespace kv {
namespace {

constexpr std::string_view kSpaces = " \t\n\r";
constexpr size_t kFirstWords = 5;

// A sentence of the text without its full stop, and its words.
struct Sentence {
  ByteRange place;
  std::vector<std::string_view> words;

  std::string joined(size_t from, size_t to) const {
    return fmt::format(
        "{}", fmt::join(words.begin() + static_cast<ptrdiff_t>(from), words.begin() + static_cast<ptrdiff_t>(to), " "));
  }
};

// Sentences end at a full stop followed by white space; those of 61 to 399 bytes are worth asking for.
std::vector<Sentence> sentences_of(std::string_view text) {
  std::vector<Sentence> sentences;
  const auto offer = [&](size_t begin, size_t end) {
    const size_t first = text.find_first_not_of(kSpaces, begin);
    if (first >= end) return;
    const size_t last = text.find_last_not_of(kSpaces, end - 1) + 1;
    Sentence sentence{{first, last}, words_of(text.substr(first, last - first))};
    if (last - first > 60 && last - first < 400 && sentence.words.size() > kFirstWords)
      sentences.push_back(std::move(sentence));
  };
  size_t begin = 0;
  for (size_t at = 0; at + 1 < text.size(); ++at) {
    if (text[at] != '.' || (text[at + 1] != ' ' && text[at + 1] != '\n')) continue;
    offer(begin, at);
    begin = at + 2;
  }
  offer(std::min(begin, text.size()), text.size());
  return sentences;
}

TaskText draw_sentence(const TaskDraw& draw) {
  const auto [text, document] = draw_text(draw.data.books, draw.chars, draw.random);
  const auto sentences = sentences_of(text);
  if (sentences.empty()) throw UserError(fmt::format("{} bytes of text hold no sentence to ask for", text.size()));
  const auto limit = static_cast<size_t>(option_or(draw.options.questions, "questions", 1, 1000, 4));
  const auto chosen = draw.random.sample(sentences.size(), std::min(sentences.size(), limit));

  TextWriter writer;
  writer.name_document(document);
  size_t last = 0;
  for (const size_t i : std::set<size_t>(chosen.begin(), chosen.end())) {
    const auto [begin, end] = sentences[i].place;
    writer.add(std::string_view(text).substr(last, begin - last), Label::kContext);
    writer.add(std::string_view(text).substr(begin, end - begin), Label::kNeedle);
    last = end;
  }
  writer.add(std::string_view(text).substr(last), Label::kContext);
  writer.add("\n", Label::kContext);
  for (const size_t i : chosen) {
    const Sentence& sentence = sentences[i];
    write_question(writer, "Complete the sentence that begins: " + sentence.joined(0, kFirstWords));
    const std::string ending = sentence.joined(kFirstWords, sentence.words.size());
    writer.link(writer.add(" " + ending, Label::kAnswer), {sentence.place});
    writer.add(".\n", Label::kAnswer);
    writer.expect({ending + "."});
  }
  return writer.take();
}

const RegisterTask kSentence({.name = "sentence",
                              .summary = "prose whose sentences are to be completed from their first five words",
                              .options = {"questions"},
                              .fit = Fit::kWhole,
                              .chars_per_token = 3.7,
                              .draw = draw_sentence});

}  // namespace
}  // namespace kv
