#include "sim/tasks/needles.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/check.h"
#include "kernels/error.h"

namespace kv {
namespace {

// "a", "a and b", "a, b and c"
std::string listed(const std::vector<std::string>& words) {
  std::string text = words.front();
  for (size_t i = 1; i < words.size(); ++i) text += (i + 1 < words.size() ? ", " : " and ") + words[i];
  return text;
}

struct Wanted {
  std::string value;
  ByteRange needle;
};

std::vector<Wanted> wanted_of(const Fact& fact, const std::vector<ByteRange>& places) {
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < fact.values.size(); ++i) wanted.push_back({fact.values[i], places[fact.insertions[i]]});
  std::stable_sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) { return a.needle < b.needle; });
  return wanted;
}

void write_question_of(TextWriter& writer, const Needles& needles, const std::vector<size_t>& question,
                       const std::vector<ByteRange>& places, Wording wording) {
  std::vector<std::string> keys;
  std::vector<Wanted> wanted;
  for (const size_t i : question) {
    keys.push_back(needles.facts[i].key);
    for (Wanted& value : wanted_of(needles.facts[i], places)) wanted.push_back(std::move(value));
  }
  const bool single = wanted.size() == 1;
  const std::string& kind = needles.kind;
  const std::string opening =
      single ? fmt::format("The {} for {} is", kind, keys[0]) : fmt::format("The {}s for {} are", kind, listed(keys));
  if (wording == Wording::kReference) {
    KV_CHECK(question.size() == 1);
    write_question(writer, single ? fmt::format("What is the {} for {}?", kind, keys[0])
                                  : fmt::format("List every {} for {}.", kind, keys[0]));
    writer.add(opening, Label::kAnswer);
  } else {
    ask_plainly(writer,
                single ? fmt::format("According to the text, what is the {} for {}?", kind, keys[0])
                       : fmt::format("According to the text, what are all the {}s for {}?", kind, listed(keys)),
                opening);
  }
  std::vector<std::string> answers;
  for (size_t i = 0; i < wanted.size(); ++i) {
    writer.add(i > 0 ? ", " : " ", Label::kAnswer);
    writer.link(writer.add(wanted[i].value, Label::kAnswer), {wanted[i].needle});
    answers.push_back(wanted[i].value);
  }
  writer.add(".\n", Label::kAnswer);
  writer.expect(std::move(answers));
}

}  // namespace

std::string needle_sentence(std::string_view kind, std::string_view key, std::string_view value) {
  return fmt::format("The {} for {} is {}.", kind, key, value);
}

void hide(Needles& needles, Random& random) {
  for (Fact& fact : needles.facts) {
    if (!fact.insertions.empty()) continue;
    for (const std::string& value : fact.values) {
      fact.insertions.push_back(needles.insertions.size());
      const size_t from = random.below(std::max<size_t>(1, needles.hay.text.size()));
      needles.insertions.push_back(
          {sentence_boundary(needles.hay.text, from), needle_sentence(needles.kind, fact.key, value)});
    }
  }
}

std::string draw_needle_hay(size_t chars, std::string_view kind, const std::function<Fact()>& draw_fact) {
  std::string hay;
  while (hay.size() < chars) {
    const Fact fact = draw_fact();
    hay += fmt::format("{}{}", hay.empty() ? "" : " ", needle_sentence(kind, fact.key, fact.values.at(0)));
  }
  return hay;
}

void place_at(Needles& needles, double depth) {
  if (!(depth >= 0 && depth <= 1)) throw UserError(fmt::format("option depth is {}, expected 0 to 1", depth));
  const auto from = static_cast<size_t>(depth * static_cast<double>(needles.hay.text.size()));
  const size_t at = depth == 0 ? 0 : sentence_boundary(needles.hay.text, from);
  for (const auto& question : needles.questions)
    for (const size_t i : question)
      for (const size_t insertion : needles.facts[i].insertions) needles.insertions[insertion].at = at;
}

TaskText write_needles(const Needles& needles, Wording wording) {
  TextWriter writer;
  writer.name_document(needles.hay.document);
  if (wording == Wording::kNeutral)
    writer.add(
        fmt::format("Sentences of the form \"{}\" stand in the text below. Remember what they state: it is asked "
                    "for at the end.\n\n",
                    needle_sentence(needles.kind, "KEY", "VALUE")),
        Label::kContext);
  const auto places = write_with_insertions(writer, needles.hay.text, needles.insertions);
  for (const auto& question : needles.questions) write_question_of(writer, needles, question, places, wording);
  return writer.take();
}

}  // namespace kv
