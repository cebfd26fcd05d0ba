#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "sim/tasks/text.h"
#include "sim/tasks/words.h"

// RULER's two aggregation types (Hsieh et al. 2024, Sec. 3.3), without its solved example in front.
namespace kv {
namespace {

struct WordQuestion {
  std::string_view reference;
  std::string_view neutral;
  std::string_view neutral_prefix;
};

TaskText write_list(std::string_view introduction, const std::string& list, const WordQuestion& question,
                    const std::vector<std::string>& answers, Wording wording) {
  const bool neutral = wording == Wording::kNeutral;
  TextWriter writer;
  if (neutral) writer.add(introduction, Label::kContext);
  writer.add(list + "\n", Label::kContext);
  if (neutral)
    ask_plainly(writer, question.neutral, question.neutral_prefix);
  else
    write_question(writer, question.reference);
  writer.add(neutral ? fmt::format(" {}.\n", fmt::join(answers, ", ")) : fmt::format("{}\n", fmt::join(answers, ", ")),
             Label::kAnswer);
  writer.expect(answers);
  return writer.take();
}

// Ten words occur 30 times each, the others three times; in short lists both less often. The words are random keys,
// since single words would not go round.
TaskText draw_common_words(const TaskDraw& draw) {
  constexpr size_t kBytesAWord = 15;
  constexpr size_t kCommon = 10;
  Random& random = draw.random;
  const Wording wording = draw.options.wording.value_or(Wording::kReference);
  const size_t count = std::max<size_t>(60, draw.chars / kBytesAWord);
  const size_t common_times = std::min<size_t>(30, count / 20);
  const size_t other_times = common_times < 10 ? 1 : 3;
  const size_t others = (count - kCommon * common_times) / other_times;
  DistinctForms forms(Form::kWords);
  std::vector<std::string> vocabulary;
  while (vocabulary.size() < kCommon + others) vocabulary.push_back(forms.draw(random));
  std::vector<std::string> words;
  for (size_t i = 0; i < vocabulary.size(); ++i)
    words.insert(words.end(), i < kCommon ? common_times : other_times, vocabulary[i]);
  random.shuffle(words);
  if (wording == Wording::kNeutral)
    for (size_t i = 0; i < words.size(); ++i) words[i] = fmt::format("{}. {}", i + 1, words[i]);
  return write_list("Below is a numbered list of words. Ten of them occur more often than the others.\n\n",
                    fmt::format("{}", fmt::join(words, " ")),
                    {.reference = "Which ten words are the most frequent?",
                     .neutral = "Which ten words of the list are the most frequent?",
                     .neutral_prefix = "The ten most frequent words are"},
                    {vocabulary.begin(), vocabulary.begin() + kCommon}, wording);
}

// The reference model knows nouns; there are not enough of them for every length.
std::vector<std::string> draw_vocabulary(size_t count, Wording wording, Random& random) {
  constexpr int kLetters = 6;
  std::vector<std::string> words;
  if (wording == Wording::kReference)
    for (const size_t i : random.sample(nouns().size(), std::min(count, nouns().size()))) words.push_back(nouns()[i]);
  std::set<std::string> seen(words.begin(), words.end());
  while (words.size() < count) {
    std::string word;
    for (int i = 0; i < kLetters; ++i) word += static_cast<char>('a' + random.below(26));
    if (seen.insert(word).second) words.push_back(std::move(word));
  }
  return words;
}

// The word of rank r occurs count / (ζ(2) r²) times, rounded down, at least once. Rank 1 is noise ("..."), which the
// question excludes; the reference wording, which knows no noise, begins with rank 2.
TaskText draw_zipf_words(const TaskDraw& draw) {
  constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6;
  constexpr size_t kAsked = 3;
  constexpr size_t kLeast = 80;  // with fewer, the third and the fourth word may be equally frequent
  Random& random = draw.random;
  const Wording wording = draw.options.wording.value_or(Wording::kReference);
  const bool neutral = wording == Wording::kNeutral;
  const double bytes_a_word = neutral ? 5 : 7;
  const double share = neutral ? 1 : 1 - 1 / kZeta2;  // of the list in that of all ranks
  const auto listed = std::max(kLeast, static_cast<size_t>(static_cast<double>(draw.chars) / bytes_a_word));
  const double all = static_cast<double>(listed) / share;
  std::vector<size_t> counts;
  size_t total = 0;
  for (double rank = neutral ? 1 : 2; total < listed; ++rank) {
    const auto times = std::max<size_t>(1, static_cast<size_t>(all / (kZeta2 * rank * rank)));
    counts.push_back(std::min(times, listed - total));
    total += counts.back();
  }
  auto vocabulary = draw_vocabulary(counts.size(), wording, random);
  if (neutral) vocabulary[0] = "...";
  std::vector<std::string> words;
  for (size_t i = 0; i < counts.size(); ++i) words.insert(words.end(), counts[i], vocabulary[i]);
  random.shuffle(words);
  const auto first = vocabulary.begin() + (neutral ? 1 : 0);
  return write_list(
      "Below is a text of coded words. Some of them occur more often than others; the dots mean nothing.\n\n",
      fmt::format("{}", fmt::join(words, " ")),
      {.reference = "Which three words are the most frequent?",
       .neutral = "Which three coded words are the most frequent? Do not count the dots.",
       .neutral_prefix = "The three most frequent coded words are"},
      {first, first + kAsked}, wording);
}

const RegisterTask kCommonWords({.name = "cwe",
                                 .summary = "RULER: which ten words of a list are the most frequent",
                                 .options = {"wording"},
                                 .fit = Fit::kWhole,
                                 .chars_per_token = 3.2,
                                 .metric = AnswerMetric::kSubstringMatch,
                                 .draw = draw_common_words});

const RegisterTask kZipfWords({.name = "fwe",
                               .summary = "RULER: which three words, of Zipf's frequencies, are the most frequent",
                               .options = {"wording"},
                               .fit = Fit::kWhole,
                               .chars_per_token = 5.0,
                               .metric = AnswerMetric::kSubstringMatch,
                               .draw = draw_zipf_words});

}  // namespace
}  // namespace kv
