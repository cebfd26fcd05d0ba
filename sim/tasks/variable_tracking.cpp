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

  const std::string hay = draw_hay(draw);
  std::vector<Insertion> insertions;  // chain by chain, each in order
  for (const Chain& chain : chains) {
    std::vector<size_t> places;
    for (size_t i = 0; i < length; ++i)
      places.push_back(std::min(hay.find(' ', random.below(std::max<size_t>(1, hay.size()))), hay.size()));
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < length; ++i) insertions.push_back({places[i], chain.statement(i)});
  }

  TextWriter writer;
  const auto places = write_with_insertions(writer, hay, insertions);
  for (const size_t c : random.sample(chain_count, chain_count)) {
    write_question(writer, fmt::format("Which variables hold the value {}?", chains[c].value));
    const auto first = places.begin() + static_cast<ptrdiff_t>(c * length);
    writer.link(writer.add(fmt::format("{}", fmt::join(chains[c].names, ", ")), Label::answer),
                {first, first + static_cast<ptrdiff_t>(length)});
    writer.add("\n", Label::answer);
  }
  return writer.take();
}

const RegisterTask kVariableTracking(
    {.name = "variable-tracking",
     .summary = "chains of assignments scattered in text; which variables hold a value",
     .options = {"chains", "hops", "hay"},
     .fit = Fit::whole,
     .chars_per_token = 3.7,
     .draw = draw_variable_tracking});

}  // namespace
}  // namespace kv
