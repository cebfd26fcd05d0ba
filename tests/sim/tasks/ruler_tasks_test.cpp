#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "sim/tasks/exam.h"
#include "sim/tasks/task.h"
#include "sim/tasks/text_match.h"
#include "tests/support/paths.h"
#include "tests/support/shipped_texts.h"

namespace kv {
namespace {

TaskText text_of(const std::string& task, size_t chars, TaskOptions options = {}, uint64_t index = 0) {
  Random random(5, index);
  return find_task(task).draw({.chars = chars, .random = random, .options = options, .data = ref::shipped_texts()});
}

std::string context_of(const TaskText& text) { return text.text.substr(0, text.questions.at(0).begin); }

struct Needle {
  std::string key;
  std::string value;
  size_t at;
};

std::vector<Needle> needles_of(const TaskText& text) {
  static const std::regex kSentence("The (?:magic number|magic uuid|access code) for ([a-z0-9-]+) is ([a-z0-9-]+)\\.");
  const std::string context = context_of(text);
  std::vector<Needle> needles;
  for (std::sregex_iterator match(context.begin(), context.end(), kSentence), end; match != end; ++match)
    needles.push_back({(*match)[1], (*match)[2], static_cast<size_t>(match->position())});
  return needles;
}

struct Shape {
  const char* task;
  size_t keys;
  size_t values;  // of each key that is asked for
  size_t distractors;
  const char* key;
  const char* reference_key;
  const char* value;
  const char* reference_value;
};

constexpr const char* kWords = "[a-z]+-[a-z]+";
constexpr const char* kNumber = "[1-9][0-9]{6}";
constexpr const char* kUuid = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}";
constexpr const char* kHex8 = "[0-9a-f]{8}";
constexpr const char* kHex16 = "[0-9a-f]{16}";

TEST(Niah, TypesHaveTheirKeysValuesAndDistractors) {
  for (const Shape& shape : {Shape{"niah-single-1", 1, 1, 0, kWords, kWords, kNumber, kNumber},
                             Shape{"niah-single-2", 1, 1, 0, kWords, kWords, kNumber, kNumber},
                             Shape{"niah-single-3", 1, 1, 0, kWords, kWords, kUuid, kHex16},
                             Shape{"niah-multikey-1", 1, 1, 3, kWords, kWords, kNumber, kNumber},
                             Shape{"niah-multivalue", 1, 4, 0, kWords, kWords, kNumber, kNumber},
                             Shape{"niah-multiquery", 4, 1, 0, kWords, kWords, kNumber, kNumber}}) {
    for (const Wording wording : {Wording::kReference, Wording::kNeutral}) {
      SCOPED_TRACE(fmt::format("{} {}", shape.task, static_cast<int>(wording)));
      const bool neutral = wording == Wording::kNeutral;
      const TaskText text = text_of(shape.task, 4000, {.wording = wording});
      const auto needles = needles_of(text);
      EXPECT_EQ(needles.size(), shape.keys * shape.values + shape.distractors);
      for (const Needle& needle : needles) {
        EXPECT_TRUE(std::regex_match(needle.key, std::regex(neutral ? shape.key : shape.reference_key)));
        EXPECT_TRUE(std::regex_match(needle.value, std::regex(neutral ? shape.value : shape.reference_value)));
      }
      // One question about all keys, or one for each in the words that the reference model knows.
      ASSERT_EQ(text.questions.size(), neutral ? 1 : shape.keys);
      for (const QuestionSpan& span : text.questions) {
        const std::string question = text.text.substr(span.begin, span.prefix - span.begin);
        std::vector<std::string> expected;
        for (const Needle& needle : needles)
          if (question.find(needle.key) != std::string::npos) expected.push_back(needle.value);
        EXPECT_THAT(span.answers, testing::UnorderedElementsAreArray(expected));
        EXPECT_EQ(span.answers.size(), shape.values * shape.keys / text.questions.size());
      }
    }
  }
}

struct HayShape {
  const char* task;
  Wording wording;
  const char* kind;
  const char* key;
  const char* value;
};

TEST(Niah, HayOfNeedlesHasNothingElse) {
  for (const HayShape& shape : {HayShape{"niah-multikey-2", Wording::kNeutral, "magic number", kWords, kNumber},
                                HayShape{"niah-multikey-3", Wording::kNeutral, "magic uuid", kUuid, kUuid},
                                HayShape{"niah-multikey-3", Wording::kReference, "access code", kHex8, kHex16}}) {
    const TaskText text = text_of(shape.task, 8000, {.wording = shape.wording});
    const auto needles = needles_of(text);
    std::set<std::string> keys;
    size_t length = 0;
    for (const Needle& needle : needles) {
      keys.insert(needle.key);
      length += fmt::format("The {} for {} is {}. ", shape.kind, needle.key, needle.value).size();
      EXPECT_TRUE(std::regex_match(needle.key, std::regex(shape.key)));
      EXPECT_TRUE(std::regex_match(needle.value, std::regex(shape.value)));
    }
    EXPECT_EQ(keys.size(), needles.size()) << "every key is stated once";
    const size_t introduction = shape.wording == Wording::kNeutral ? text.text.find("\n\n") + 2 : 0;
    EXPECT_EQ(length, context_of(text).size() - introduction);
    EXPECT_GE(length, 8000u);
  }
}

TEST(Needles, HideInOtherNeedlesOfTheirKindToo) {
  const TaskText text = text_of("needle", 4000, {.needles = 2, .values = 1, .questions = 2, .hay = Hay::kNeedles});
  const std::string question = text.text.substr(text.questions.at(0).begin);
  const std::string kind = question.substr(std::string("<|question|>What is the ").size(), 8);
  size_t count = 0;
  for (size_t at = 0; (at = text.text.find("The " + kind, at)) < text.questions[0].begin; ++at) ++count;
  EXPECT_GT(count, 60u);  // of less than 60 bytes each
}

TEST(Niah, NoiseRepeatsTheSameSentences) {
  const std::string context = context_of(text_of("niah-single-1", 6000));
  const std::string sentence = "Rain fell on the roofs of the town.";
  size_t count = 0;
  for (size_t at = context.find(sentence); at != context.npos; at = context.find(sentence, at + 1)) ++count;
  EXPECT_GT(count, 20u);
}

TEST(Niah, BooksFollowEachOtherWhereNoneIsLongEnough) {
  const TaskText text = text_of("niah-single-2", 200'000);
  EXPECT_NEAR(static_cast<double>(context_of(text).size()), 200'000, 100);
  EXPECT_TRUE(std::any_of(ref::shipped_texts().books.begin(), ref::shipped_texts().books.end(),
                          [&](const Document& book) { return text.text.starts_with(book.text.substr(0, 1000)); }));
}

TEST(Needles, StandAtTheAskedDepth) {
  for (const char* task : {"niah-single-2", "niah-multivalue", "needle"}) {
    for (const double depth : {0.0, 0.25, 0.5, 1.0}) {
      const TaskText text = text_of(task, 20'000, {.distractors = 3, .depth = depth});
      const std::string question =
          text.text.substr(text.questions[0].begin, text.questions[0].prefix - text.questions[0].begin);
      const double length = static_cast<double>(context_of(text).size());
      for (const UsefulLink& link : text.links) {
        const double at = static_cast<double>(link.sources.at(0).first);
        EXPECT_NEAR(at / length, depth, 0.05) << task;
      }
    }
  }
  EXPECT_EQ(text_of("niah-single-2", 5000, {.depth = 0.0}).links[0].sources[0].first, 1u);
  const TaskText last = text_of("niah-single-2", 5000, {.depth = 1.0});
  EXPECT_EQ(last.links[0].sources[0].second + 1, context_of(last).size()) << "only the line end is behind it";
}

TEST(Needles, NumberOfDistractorsLeavesTheQuestionAsItIs) {
  const TaskText with_2 = text_of("niah-single-2", 5000, {.distractors = 2});
  const TaskText with_60 = text_of("niah-single-2", 5000, {.distractors = 60});
  EXPECT_EQ(needles_of(with_2).size(), 3u);
  EXPECT_EQ(needles_of(with_60).size(), 61u);
  EXPECT_EQ(with_2.text.substr(with_2.questions[0].begin), with_60.text.substr(with_60.questions[0].begin));
  std::set<std::string> keys;
  for (const Needle& needle : needles_of(with_60)) keys.insert(needle.key);
  EXPECT_EQ(keys.size(), 61u);
}

TEST(Needles, DistractorsAreNeverAskedFor) {
  for (uint64_t index = 0; index < 10; ++index) {
    const TaskText text = text_of("needle", 4000, {.values = 1, .questions = 2, .distractors = 12}, index);
    std::set<std::string> answers;
    for (const QuestionSpan& question : text.questions) answers.insert(question.answers.at(0));
    EXPECT_EQ(answers.size(), 2u);
    EXPECT_EQ(
        std::count_if(text.spans.begin(), text.spans.end(), [](const Span& s) { return s.label == Label::kNeedle; }),
        14);
  }
}

TEST(VariableTracking, OfRulerIsOneChainOfFive) {
  const TaskText text = text_of("vt", 5000, {.wording = Wording::kNeutral});
  ASSERT_EQ(text.questions.size(), 1u);
  EXPECT_EQ(text.questions[0].answers.size(), 5u);
  for (const auto& [begin, end] : text.links.at(0).sources) {
    const char before = text.text[begin - 2];
    EXPECT_TRUE(before == '.' || before == '\n') << "stands between sentences";
  }
}

std::map<std::string, int> counts_of(const std::string& list) {
  std::map<std::string, int> counts;
  for (const std::string_view word : words_of(list)) ++counts[std::string(word)];
  return counts;
}

TEST(CommonWords, OccurThirtyTimesAndTheOthersThrice) {
  const TaskText text = text_of("cwe", 15'000);
  const auto counts = counts_of(context_of(text));
  const std::set<std::string> common(text.questions[0].answers.begin(), text.questions[0].answers.end());
  EXPECT_EQ(common.size(), 10u);
  for (const auto& [word, count] : counts) EXPECT_EQ(count, common.contains(word) ? 30 : 3) << word;
}

TEST(CommonWords, StayTheMostFrequentOnesInShortLists) {
  for (const size_t chars : {0u, 1000u, 2000u, 4000u, 8000u}) {
    const TaskText text = text_of("cwe", chars);
    const auto counts = counts_of(context_of(text));
    const std::set<std::string> common(text.questions[0].answers.begin(), text.questions[0].answers.end());
    int least = 1000;
    int most = 0;
    for (const auto& [word, count] : counts)
      common.contains(word) ? least = std::min(least, count) : most = std::max(most, count);
    EXPECT_GT(least, most) << chars;
  }
}

TEST(CommonWords, AreNumberedInTheNeutralWording) {
  const TaskText text = text_of("cwe", 3000, {.wording = Wording::kNeutral});  // 3000 bytes: 200 words of 15 or so
  EXPECT_NE(text.text.find("\n\n1. "), std::string::npos);
  EXPECT_NE(text.text.find(" 190. "), std::string::npos);
}

TEST(FrequentWords, OfRulerFollowZipfBehindTheNoise) {
  for (const Wording wording : {Wording::kReference, Wording::kNeutral}) {
    for (const size_t chars : {0u, 2000u, 30'000u}) {
      const bool neutral = wording == Wording::kNeutral;
      const TaskText text = text_of("fwe", chars, {.wording = wording});
      const std::string context = context_of(text);
      auto counts = counts_of(neutral ? context.substr(context.find("\n\n")) : context);
      EXPECT_EQ(counts.contains("..."), neutral);
      counts.erase("...");
      std::vector<std::pair<int, std::string>> order;
      for (const auto& [word, count] : counts) order.emplace_back(-count, word);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(text.questions[0].answers,
                (std::vector<std::string>{order[0].second, order[1].second, order[2].second}));
      EXPECT_LT(order[0].first, order[1].first);
      EXPECT_LT(order[1].first, order[2].first);
      EXPECT_LT(order[2].first, order[3].first) << "the answer is unique";
      // Ranks 2 and 4: 1/4 against 1/16, but for rounding down.
      EXPECT_NEAR(static_cast<double>(order[0].first) / order[2].first, 4, 1.1);
    }
  }
}

}  // namespace
}  // namespace kv
