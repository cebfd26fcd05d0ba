#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "sim/tasks/text.h"
#include "sim/tasks/words.h"

namespace kv {
namespace {

const std::array<std::string, 8> kKinds = {"access code",   "badge number", "locker code", "ticket number",
                                           "serial number", "magic number", "vault code",  "order number"};

// After the first full stop or line end behind a uniform place, so that statements stand between sentences.
size_t place_between_sentences(std::string_view hay, Random& random) {
  const size_t from = random.below(std::max<size_t>(1, hay.size()));
  const size_t found = std::min(hay.find(". ", from), hay.find('\n', from));
  return found == hay.npos ? hay.size() : found + 1;
}

struct Fact {
  std::string key;
  std::vector<std::string> values;
  std::vector<size_t> insertions;  // one for each value
};

std::vector<Fact> draw_facts(const TaskDraw& draw) {
  constexpr std::array<int, 7> kCounts = {1, 1, 2, 4, 8, 16, 24};
  constexpr std::array<int, 3> kValueCounts = {2, 3, 4};
  Random& random = draw.random;
  const int drawn_count = random.choice(kCounts);
  const int count = option_or(draw.options.needles, "needles", 1, 1000, drawn_count);
  std::vector<Fact> facts;
  while (static_cast<int>(facts.size()) < count) {
    const std::string key = random_key(random);
    if (std::none_of(facts.begin(), facts.end(), [&](const Fact& fact) { return fact.key == key; }))
      facts.push_back({key, {}, {}});
  }
  const bool lists = random.chance(0.2);
  for (Fact& fact : facts) {
    const int drawn_values = lists ? random.choice(kValueCounts) : 1;
    const int values = option_or(draw.options.values, "values", 1, 16, drawn_values);
    for (int i = 0; i < values; ++i) fact.values.push_back(random_value(random));
  }
  return facts;
}

// A single value stands in a full sentence; several are listed in the order in which the text gives them.
void write_answer(TextWriter& writer, const std::string& kind, const Fact& fact, const std::vector<ByteRange>& places) {
  std::vector<size_t> order(fact.values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return places[fact.insertions[a]] < places[fact.insertions[b]]; });
  const bool single = order.size() == 1;
  writer.add(
      single ? fmt::format("The {} for {} is ", kind, fact.key) : fmt::format("The {}s for {} are ", kind, fact.key),
      Label::answer);
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0) writer.add(", ", Label::answer);
    writer.link(writer.add(fact.values[order[i]], Label::answer), {places[fact.insertions[order[i]]]});
  }
  writer.add(".\n", Label::answer);
}

TaskText draw_needle(const TaskDraw& draw) {
  constexpr std::array<int, 4> kQuestionCounts = {1, 2, 4, 8};
  Random& random = draw.random;
  const std::string& kind = random.choice(kKinds);
  std::vector<Fact> facts = draw_facts(draw);
  const std::string hay = draw_hay(draw);
  std::vector<Insertion> insertions;
  for (Fact& fact : facts)
    for (const std::string& value : fact.values) {
      fact.insertions.push_back(insertions.size());
      insertions.push_back(
          {place_between_sentences(hay, random), fmt::format("The {} for {} is {}.", kind, fact.key, value)});
    }

  TextWriter writer;
  const auto places = write_with_insertions(writer, hay, insertions);
  const int drawn_questions = random.choice(kQuestionCounts);
  const int questions = option_or(draw.options.questions, "questions", 1, 1000, drawn_questions);
  for (const size_t i : random.sample(facts.size(), std::min(facts.size(), static_cast<size_t>(questions)))) {
    const Fact& fact = facts[i];
    write_question(writer, fact.values.size() == 1 ? fmt::format("What is the {} for {}?", kind, fact.key)
                                                   : fmt::format("List every {} for {}.", kind, fact.key));
    write_answer(writer, kind, fact, places);
  }
  return writer.take();
}

const RegisterTask kNeedle({.name = "needle",
                            .summary = "facts hidden in books or code, asked for at the end",
                            .options = {"needles", "values", "questions", "hay"},
                            .fit = Fit::whole,
                            .chars_per_token = 3.5,
                            .draw = draw_needle});

}  // namespace
}  // namespace kv
