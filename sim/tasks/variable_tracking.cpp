#include <fmt/format.h>

#include <algorithm>

#include "sim/tasks/text.h"
#include "sim/tasks/words.h"

namespace kv {
namespace {

constexpr int kNameLetters = 5;

std::vector<std::string> draw_names(size_t count, Random& random) {
  std::vector<std::string> names;
  while (names.size() < count) {
    std::string name;
    for (int i = 0; i < kNameLetters; ++i) name += static_cast<char>('A' + random.below(26));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

struct Chain {
  std::vector<std::string> names;
  std::string value;

  std::string statement(size_t i) const {
    return i == 0 ? fmt::format("VAR {} = {}.", names[0], value)
                  : fmt::format("VAR {} = VAR {}.", names[i], names[i - 1]);
  }
};

TaskText draw_variable_tracking(const TaskDraw& draw) {
  Random& random = draw.random;
  const bool neutral = draw.options.wording == Wording::kNeutral;
  const int drawn_chains = random.between(1, 5);
  const int drawn_hops = random.between(1, 5);
  const auto chain_count = static_cast<size_t>(option_or(draw.options.chains, "chains", 1, 100, drawn_chains));
  const auto length = 1 + static_cast<size_t>(option_or(draw.options.hops, "hops", 1, 100, drawn_hops));
  const auto names = draw_names(chain_count * length, random);
  std::vector<Chain> chains(chain_count);
  for (size_t c = 0; c < chain_count; ++c) {
    chains[c].names.assign(names.begin() + static_cast<ptrdiff_t>(c * length),
                           names.begin() + static_cast<ptrdiff_t>((c + 1) * length));
    chains[c].value = random_number(random, 5);
  }

  const auto [hay, document] = draw_hay(draw);
  std::vector<Insertion> insertions;  // chain by chain, each in order
  for (const Chain& chain : chains) {
    std::vector<size_t> places;
    for (size_t i = 0; i < length; ++i) {
      const size_t from = random.below(std::max<size_t>(1, hay.size()));
      // The reference model was trained with statements inside sentences, too.
      places.push_back(neutral ? sentence_boundary(hay, from) : std::min(hay.find(' ', from), hay.size()));
    }
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < length; ++i) insertions.push_back({places[i], chain.statement(i)});
  }

  TextWriter writer;
  writer.name_document(document);
  if (neutral)
    writer.add(
        "The text below assigns values to variables, some of them by naming another variable. Remember which variable "
        "has which value: it is asked for at the end.\n\n",
        Label::kContext);
  const auto places = write_with_insertions(writer, hay, insertions);
  for (const size_t c : random.sample(chain_count, chain_count)) {
    if (neutral) {
      ask_plainly(writer,
                  fmt::format("Which variables hold the value {}, directly or through others?", chains[c].value),
                  fmt::format("The {} variables that hold {} are", length, chains[c].value));
      writer.add(" ", Label::kAnswer);
    } else {
      write_question(writer, fmt::format("Which variables hold the value {}?", chains[c].value));
    }
    const auto first = places.begin() + static_cast<ptrdiff_t>(c * length);
    writer.link(writer.add(fmt::format("{}", fmt::join(chains[c].names, ", ")), Label::kAnswer),
                {first, first + static_cast<ptrdiff_t>(length)});
    writer.add(neutral ? ".\n" : "\n", Label::kAnswer);
    writer.expect(chains[c].names);
  }
  return writer.take();
}

// RULER's setting of the same task, whose needles are the assignments of one chain.
TaskText draw_ruler(const TaskDraw& draw) {
  TaskOptions options = draw.options;
  if (!options.chains) options.chains = 1;
  if (!options.hops) options.hops = 4;
  if (!options.hay) options.hay = Hay::kNoise;
  return draw_variable_tracking({draw.chars, draw.random, options, draw.data});
}

const RegisterTask kVariableTracking(
    {.name = "variable-tracking",
     .summary = "chains of assignments scattered in text; which variables hold a value",
     .options = {"chains", "hops", "hay", "wording"},
     .fit = Fit::kWhole,
     .chars_per_token = 3.7,
     .metric = AnswerMetric::kSubstringMatch,
     .draw = draw_variable_tracking});

const RegisterTask kRuler({.name = "vt",
                           .summary = "RULER's variable tracking: one chain of five in repeated sentences",
                           .options = {"chains", "hops", "hay", "wording"},
                           .fit = Fit::kWhole,
                           .chars_per_token = 4.2,
                           .metric = AnswerMetric::kSubstringMatch,
                           .draw = draw_ruler});

}  // namespace
}  // namespace kv
