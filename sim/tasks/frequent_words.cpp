#include <fmt/format.h>

#include <array>

#include "sim/tasks/text.h"
#include "sim/tasks/words.h"

namespace kv {
namespace {

TaskText draw_frequent_words(const TaskDraw& draw) {
  constexpr size_t kBytesAWord = 7;
  constexpr size_t kVocabulary = 40;
  constexpr std::array<size_t, 3> kShares = {6, 8, 11};  // one word in so many
  Random& random = draw.random;
  std::vector<std::string> top;
  std::vector<std::string> rarer;
  for (const size_t i : random.sample(nouns().size(), kVocabulary))
    (top.size() < kShares.size() ? top : rarer).push_back(nouns()[i]);

  const size_t count = draw.chars / kBytesAWord;
  std::vector<std::string> words;
  for (size_t i = 0; i < top.size(); ++i) words.insert(words.end(), count / kShares[i], top[i]);
  while (words.size() < count) words.push_back(random.choice(rarer));
  random.shuffle(words);

  TextWriter writer;
  writer.add(fmt::format("{}\n", fmt::join(words, " ")), Label::kContext);
  write_question(writer, "Which three words are the most frequent?");
  writer.add(fmt::format("{}\n", fmt::join(top, ", ")), Label::kAnswer);
  writer.expect(top);
  return writer.take();
}

const RegisterTask kFrequentWords({.name = "frequent-words",
                                   .summary = "a list of words; which three are the most frequent",
                                   .options = {},
                                   .fit = Fit::kWhole,
                                   .chars_per_token = 6.9,
                                   .metric = AnswerMetric::kSubstringMatch,
                                   .draw = draw_frequent_words});

}  // namespace
}  // namespace kv
