#include <algorithm>
#include <array>

#include "sim/tasks/needles.h"
#include "sim/tasks/words.h"

namespace kv {
namespace {

const std::array<std::string, 8> kKinds = {"access code",   "badge number", "locker code", "ticket number",
                                           "serial number", "magic number", "vault code",  "order number"};

// Facts that are asked for, and the distractors after them.
struct Drawn {
  std::vector<Fact> facts;
  size_t candidates = 0;
};

Drawn draw_facts(const TaskDraw& draw, DistinctForms& keys) {
  constexpr std::array<int, 7> kCounts = {1, 1, 2, 4, 8, 16, 24};
  constexpr std::array<int, 3> kValueCounts = {2, 3, 4};
  Random& random = draw.random;
  const TaskOptions& options = draw.options;
  const int drawn_count = random.choice(kCounts);
  const int distractors = option_or(options.distractors, "distractors", 0, kMostDistractors, 0);
  const int usual_count = options.distractors ? options.questions.value_or(1) : drawn_count;
  const int count = option_or(options.needles, "needles", 1, 1000, usual_count);
  Drawn drawn{{}, static_cast<size_t>(count)};
  for (int i = 0; i < count + distractors; ++i) drawn.facts.push_back({keys.draw(random), {}});
  const bool lists = random.chance(0.2);
  for (Fact& fact : drawn.facts) {
    const int drawn_values = lists ? random.choice(kValueCounts) : 1;
    const int values = option_or(options.values, "values", 1, 16, drawn_values);
    for (int i = 0; i < values; ++i) fact.values.push_back(random_value(random));
  }
  return drawn;
}

TaskText draw_needle(const TaskDraw& draw) {
  constexpr std::array<int, 4> kQuestionCounts = {1, 2, 4, 8};
  Random& random = draw.random;
  Needles needles{.kind = random.choice(kKinds), .facts = {}, .hay = {}};
  DistinctForms keys(Form::kWords);
  Drawn drawn = draw_facts(draw, keys);
  needles.facts = std::move(drawn.facts);
  if (draw.options.hay == Hay::kNeedles) {
    needles.hay.text = draw_needle_hay(draw.chars, needles.kind, [&] {
      std::string key = keys.draw(random);
      return Fact{std::move(key), {random_value(random)}};
    });
  } else {
    needles.hay = draw_hay(draw);
  }
  hide(needles, random);
  const int drawn_questions = random.choice(kQuestionCounts);
  const int questions = option_or(draw.options.questions, "questions", 1, 1000, drawn_questions);
  for (const size_t i : random.sample(drawn.candidates, std::min(drawn.candidates, static_cast<size_t>(questions))))
    needles.questions.push_back({i});
  if (draw.options.depth) place_at(needles, *draw.options.depth);
  return write_needles(needles, draw.options.wording.value_or(Wording::kReference));
}

const RegisterTask kNeedle({.name = "needle",
                            .summary = "facts hidden in books or code, asked for at the end",
                            .options = {"needles", "values", "questions", "distractors", "depth", "hay", "wording"},
                            .fit = Fit::kWhole,
                            .chars_per_token = 3.5,
                            .metric = AnswerMetric::kSubstringMatch,
                            .draw = draw_needle});

}  // namespace
}  // namespace kv
