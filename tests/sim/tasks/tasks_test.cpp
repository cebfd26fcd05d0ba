#include "sim/tasks/draw_task.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/model/tokenizer/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/shipped_texts.h"

namespace kv {
namespace {

Sample sample_of(const std::string& task, int tokens, uint64_t index = 0, TaskOptions options = {}) {
  return make_sample({.task = task, .tokens = tokens, .seed = 11, .index = index, .options = options},
                     ref::shipped_tokenizer(), ref::shipped_texts());
}

TaskText text_of(const std::string& task, size_t chars, uint64_t index = 0, TaskOptions options = {}) {
  Random random(5, index);
  return find_task(task).draw({.chars = chars, .random = random, .options = options, .data = ref::shipped_texts()});
}

std::string decode(const Sample& sample, int32_t begin, int32_t end) {
  return ref::shipped_tokenizer().decode(std::span(sample.ids).subspan(begin, end - begin));
}

std::string_view part(const TaskText& text, size_t begin, size_t end) {
  return std::string_view(text.text).substr(begin, end - begin);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The question and answer pairs at the end of the text, without the final line ends.
std::vector<std::pair<std::string, std::string>> answers_of(const std::string& text) {
  const std::string question = "<|question|>";
  const std::string answer = "<|answer|>";
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t at = text.find(question); at != text.npos; at = text.find(question, at)) {
    const size_t ask = at + question.size();
    const size_t middle = text.find(answer, ask);
    const size_t answered = middle + answer.size();
    at = std::min(text.find(question, answered), text.size());
    pairs.emplace_back(text.substr(ask, middle - ask), text.substr(answered, at - answered - 1));
  }
  return pairs;
}

std::string error_of(const TaskRequest& request) {
  try {
    make_sample(request, ref::shipped_tokenizer(), ref::shipped_texts());
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

class EveryTask : public testing::TestWithParam<std::string> {};

TEST_P(EveryTask, IsAFunctionOfSeedAndIndex) {
  const Sample first = sample_of(GetParam(), 700);
  const Sample again = sample_of(GetParam(), 700);
  EXPECT_EQ(first.ids, again.ids);
  EXPECT_EQ(first.labels, again.labels);
  EXPECT_EQ(first.name, GetParam() + "-0");
  EXPECT_NE(first.ids, sample_of(GetParam(), 700, 1).ids);
  EXPECT_NE(
      first.ids,
      make_sample({.task = GetParam(), .tokens = 700, .seed = 12}, ref::shipped_tokenizer(), ref::shipped_texts()).ids);
}

TEST_P(EveryTask, HasTheAskedLength) {
  const Task& task = find_task(GetParam());
  for (const int tokens : {600, 2048, 8192}) {
    for (uint64_t index = 0; index < 3; ++index) {
      const Sample sample = sample_of(task.name, tokens, index);
      const int length = static_cast<int>(sample.ids.size());
      EXPECT_LE(length, tokens);
      EXPECT_GE(length, task.fit == Fit::kCut ? tokens : tokens * 9 / 10) << task.name << " " << index;
      EXPECT_EQ(sample.labels.size(), sample.ids.size());
    }
  }
}

TEST_P(EveryTask, SpansCoverTheTextAndLabelsFollowThem) {
  const TaskText text = text_of(GetParam(), 6000);
  size_t end = 0;
  for (const Span& span : text.spans) {
    EXPECT_EQ(span.begin, end);
    EXPECT_LT(span.begin, span.end);
    end = span.end;
  }
  EXPECT_EQ(end, text.text.size());

  const Sample sample = tokenize_task(text, 0, ref::shipped_tokenizer());
  EXPECT_EQ(sample.ids[0], 0);
  EXPECT_EQ(sample.labels[0], Label::kContext);
  EXPECT_EQ(decode(sample, 1, static_cast<int32_t>(sample.ids.size())), text.text);
  for (size_t i = 0; i < sample.ids.size(); ++i)
    if (sample.ids[i] == 1 || sample.ids[i] == 2) {
      EXPECT_EQ(sample.labels[i], Label::kQuestion);
    }
  const auto first = std::find(sample.ids.begin(), sample.ids.end(), 1) - sample.ids.begin();
  EXPECT_EQ(sample.context_tokens, first);
}

TEST_P(EveryTask, LinksLookBackFromTheTokenBeforeEachAnswer) {
  const TaskText text = text_of(GetParam(), 6000);
  const Sample sample = tokenize_task(text, 0, ref::shipped_tokenizer());
  ASSERT_EQ(sample.links.size(), text.links.size());
  for (size_t i = 0; i < text.links.size(); ++i) {
    const UsefulLink& link = text.links[i];
    const Link& tokens = sample.links[i];
    const std::string query(part(text, link.query_begin, link.query_end));
    EXPECT_NE(decode(sample, tokens.query_begin + 1, tokens.query_end + 1).find(query), std::string::npos) << query;
    ASSERT_FALSE(link.sources.empty());
    for (size_t k = 0; k < link.sources.size(); ++k) {
      EXPECT_LE(link.sources[k].second, link.query_begin);
      const std::string source(part(text, link.sources[k].first, link.sources[k].second));
      const auto [begin, end] = tokens.sources[k];
      EXPECT_LE(end, tokens.query_begin + 1);
      EXPECT_NE(decode(sample, begin, end).find(source), std::string::npos) << source;
    }
    if (i > 0) {
      EXPECT_LE(sample.links[i - 1].query_begin, tokens.query_begin);
    }
  }
}

// A change of these ids changes every result made with them.
TEST_P(EveryTask, KeepsItsFrozenIds) {
  static const std::map<std::string, std::string> kHashes = {
      {"book", "92c3962cfe357911"},
      {"code", "25913dc588c7a975"},
      {"cwe", "65c56ad745461a2d"},
      {"frequent-words", "4f9edb40e2e3e1f7"},
      {"fwe", "3c43c8ba38dc2315"},
      {"kv", "bab11bdf33c73cc0"},
      {"math", "9739a4320bfc991d"},
      {"needle", "c65b3438cdd1c97a"},
      {"niah-multikey-1", "3ed9096580a43d4e"},
      {"niah-multikey-2", "e97b40cdfd0f885d"},
      {"niah-multikey-3", "232475993442d4d5"},
      {"niah-multiquery", "f0c732635abd4b95"},
      {"niah-multivalue", "09d222451583d7f1"},
      {"niah-single-1", "371fb0563d629ec6"},
      {"niah-single-2", "94866c9e67583274"},
      {"niah-single-3", "0bcbb0a216406437"},
      {"reason", "e20791e79e364005"},
      {"sentence", "af4d0d9734a33388"},
      {"variable-tracking", "54cff4c9f37cd22e"},
      {"vt", "4ef37834db3917a1"},
  };
  const Sample sample = sample_of(GetParam(), 1024);
  const std::string hash = sha256_hex(std::as_bytes(std::span(sample.ids))).substr(0, 16);
  ASSERT_TRUE(kHashes.contains(GetParam())) << GetParam() << " has no frozen ids";
  EXPECT_EQ(hash, kHashes.at(GetParam()));
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Task* task : all_tasks()) names.push_back(task->name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Tasks, EveryTask, testing::ValuesIn(task_names()), [](const auto& task) {
  std::string name = task.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Needle, AnswersStandInTheNeedlesThatTheyLinkTo) {
  int lists = 0;
  for (uint64_t index = 0; index < 30; ++index) {
    const TaskText text = text_of("needle", 4000, index);
    for (const UsefulLink& link : text.links) {
      ASSERT_EQ(link.sources.size(), 1u);
      const auto needle = part(text, link.sources[0].first, link.sources[0].second);
      EXPECT_TRUE(needle.starts_with("The ") && needle.ends_with(".")) << needle;
      EXPECT_TRUE(needle.ends_with(fmt::format(" is {}.", part(text, link.query_begin, link.query_end)))) << needle;
    }
    for (const auto& [question, answer] : answers_of(text.text)) {
      if (question.starts_with("What is the ")) {
        const std::string subject = question.substr(12, question.size() - 13);
        EXPECT_TRUE(answer.starts_with("The " + subject + " is ")) << answer;
        EXPECT_LT(text.text.find(answer), text.text.find("<|question|>"))
            << "the whole answer is a sentence of the text";
      } else {
        ++lists;
        EXPECT_TRUE(question.starts_with("List every ")) << question;
      }
    }
  }
  EXPECT_GT(lists, 0);
}

TEST(Needle, ListsValuesInTheOrderOfTheText) {
  const TaskText text = text_of("needle", 4000, 0, {.needles = 3, .values = 4, .questions = 3});
  ASSERT_EQ(text.links.size(), 12u);
  for (size_t i = 1; i < text.links.size(); ++i)
    if (i % 4 != 0) {
      EXPECT_LT(text.links[i - 1].sources[0], text.links[i].sources[0]);
    }
  EXPECT_EQ(answers_of(text.text).size(), 3u);
}

TEST(Needle, HidesInWhatTheOptionSays) {
  const TaskText text = text_of("needle", 3000, 0, {.needles = 1, .hay = Hay::kCode});
  // The longest stretch of hay is found in one of the code files.
  const auto longest = std::max_element(text.spans.begin(), text.spans.end(),
                                        [](const Span& a, const Span& b) { return a.end - a.begin < b.end - b.begin; });
  const auto hay = part(text, longest->begin + 1, longest->end - 1);
  EXPECT_TRUE(std::any_of(ref::shipped_texts().code.begin(), ref::shipped_texts().code.end(),
                          [&](const Document& document) { return document.text.find(hay) != std::string::npos; }));
}

TEST(KeyValue, AnswersAreTheValuesOfTheirLines) {
  const TaskText text = text_of("kv", 4000);
  std::map<std::string, std::string> lines;
  std::istringstream stream(text.text.substr(0, text.text.find("<|question|>")));
  for (std::string line; std::getline(stream, line);) {
    const size_t colon = line.find(": ");
    ASSERT_NE(colon, std::string::npos);
    EXPECT_TRUE(lines.emplace(line.substr(0, colon), line.substr(colon + 2)).second) << "a key occurs twice";
  }
  EXPECT_EQ(lines.size(), 4000u / 28);
  const auto answers = answers_of(text.text);
  ASSERT_EQ(answers.size(), 24u);
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(lines.at(answers[i].first), answers[i].second);
    const auto [begin, end] = text.links[i].sources.at(0);
    EXPECT_EQ(part(text, begin, end), answers[i].first + ": " + answers[i].second);
  }
  EXPECT_EQ(answers_of(text_of("kv", 4000, 0, {.questions = 5}).text).size(), 5u);
}

TEST(VariableTracking, AnswersAreTheChainsOfTheirValues) {
  for (uint64_t index = 0; index < 10; ++index) {
    const TaskText text = text_of("variable-tracking", 4000, index, {.chains = 3, .hops = 4});
    std::map<std::string, std::string> next;  // what is assigned from a variable or a value
    const std::string context = text.text.substr(0, text.text.find("<|question|>"));
    const auto words = words_of(context);
    for (size_t i = 3; i + 1 < words.size(); ++i) {
      if (words[i - 3] != "VAR" || words[i - 1] != "=") continue;
      const std::string& source = words[i] == "VAR" ? words[i + 1] : words[i];
      next[source.substr(0, source.find('.'))] = words[i - 2];
    }
    const auto answers = answers_of(text.text);
    ASSERT_EQ(answers.size(), 3u);
    for (size_t i = 0; i < answers.size(); ++i) {
      const std::string value = answers[i].first.substr(std::string("Which variables hold the value ").size(), 5);
      std::string expected;
      for (std::string at = value; next.contains(at); at = next[at])
        expected += (expected.empty() ? "" : ", ") + next[at];
      EXPECT_EQ(answers[i].second, expected);
      EXPECT_EQ(text.links[i].sources.size(), 5u);
      EXPECT_TRUE(std::is_sorted(text.links[i].sources.begin(), text.links[i].sources.end()));
    }
  }
}

TEST(SentenceRecall, AnswersCompleteASentenceOfTheText) {
  const TaskText text = text_of("sentence", 6000);
  const auto words = words_of(text.text.substr(0, text.text.find("<|question|>")));
  const std::string context = fmt::format("{}", fmt::join(words, " "));
  const auto answers = answers_of(text.text);
  ASSERT_EQ(answers.size(), 4u);
  for (const auto& [question, answer] : answers) {
    const std::string begun = question.substr(std::string("Complete the sentence that begins: ").size());
    const std::string sentence = begun + answer.substr(0, answer.size() - 1);
    EXPECT_NE(context.find(sentence), std::string::npos) << sentence;
  }
}

TEST(FrequentWords, AnswersAreTheMostFrequentOnes) {
  for (uint64_t index = 0; index < 5; ++index) {
    const TaskText text = text_of("frequent-words", 7000, index);
    std::map<std::string, int> counts;
    for (const std::string& word : words_of(text.text.substr(0, text.text.find('\n')))) ++counts[word];
    std::vector<std::pair<int, std::string>> order;
    for (const auto& [word, count] : counts) order.emplace_back(-count, word);
    std::sort(order.begin(), order.end());
    const std::string expected = fmt::format("{}, {}, {}", order[0].second, order[1].second, order[2].second);
    EXPECT_EQ(answers_of(text.text).at(0).second, expected);
    EXPECT_EQ(-order[0].first, 1000 / 6);
  }
}

// Evaluates the definitions of a reasoning text by itself.
class Definitions {
 public:
  explicit Definitions(const std::string& context) {
    std::istringstream stream(context);
    std::string line;
    std::getline(stream, line);
    EXPECT_EQ(line, "Work modulo 1000.");
    while (std::getline(stream, line)) {
      const size_t equals = line.find(" = ");
      if (equals != std::string::npos) texts_[line.substr(0, equals)] = line.substr(equals + 3);
    }
  }

  const std::string& text(const std::string& name) const { return texts_.at(name); }
  size_t size() const { return texts_.size(); }

  int value(const std::string& term) {
    if (std::isdigit(static_cast<unsigned char>(term[0]))) return std::stoi(term);
    if (const auto known = values_.find(term); known != values_.end()) return known->second;
    std::istringstream stream(texts_.at(term));
    std::string left, op, right;
    stream >> left >> op >> right;
    int result = value(left);
    if (op == "+") result += value(right);
    if (op == "-") result += 1000 - value(right);
    if (op == "*") result *= value(right);
    return values_[term] = result % 1000;
  }

 private:
  std::map<std::string, std::string> texts_;
  std::map<std::string, int> values_;
};

// How many lines of the trace work out each quantity; every line is held against the definitions.
std::map<std::string, int> check_trace(const TaskText& text, Definitions& definitions) {
  std::istringstream trace(text.text.substr(text.text.find("<|answer|>") + 10));
  std::map<std::string, int> resolved;
  std::string line;
  while (std::getline(trace, line)) {
    EXPECT_EQ(line.back(), '.');
    line.pop_back();
    const auto words = words_of(line);
    const bool lists = line.starts_with("Recap:") || line.starts_with("Let me") || line.starts_with("Known so far:") ||
                       line.starts_with("Therefore ");
    if (lists) {
      // "name = value" in the end and before every comma
      for (size_t i = 2; i < words.size(); ++i) {
        if (words[i - 1] != "=") continue;
        EXPECT_EQ(std::to_string(definitions.value(words[i - 2])), words[i].substr(0, words[i].find(','))) << line;
        EXPECT_TRUE(resolved.contains(words[i - 2])) << line;
      }
      continue;
    }
    const auto equals = std::find(words.begin(), words.end(), "=");
    const std::string name = *(equals - 1);
    const std::vector<std::string> terms(equals + 1, words.end());
    if (terms.size() == 1) {
      EXPECT_EQ(definitions.text(name), terms[0]);
    } else {
      // left op right = left op right = value
      EXPECT_EQ(terms.size(), 9u) << line;
      if (terms.size() != 9) continue;
      EXPECT_EQ(definitions.text(name), fmt::format("{} {} {}", terms[0], terms[1], terms[2]));
      EXPECT_EQ(std::to_string(definitions.value(terms[0])), terms[4]) << line;
      EXPECT_EQ(terms[1], terms[5]);
      EXPECT_EQ(std::to_string(definitions.value(terms[2])), terms[6]) << line;
      EXPECT_EQ(std::to_string(definitions.value(name)), terms[8]) << line;
      for (const std::string& operand : {terms[0], terms[2]})
        EXPECT_TRUE(std::isdigit(static_cast<unsigned char>(operand[0])) || resolved.contains(operand)) << line;
    }
    ++resolved[name];
  }
  return resolved;
}

Definitions definitions_of(const TaskText& text) {
  return Definitions(text.text.substr(0, text.text.find("<|question|>")));
}

TEST(Reason, EveryLineOfTheTraceFollowsFromTheDefinitions) {
  for (uint64_t index = 0; index < 10; ++index) {
    const TaskText text = text_of("reason", 6000, index);
    Definitions definitions = definitions_of(text);
    EXPECT_EQ(definitions.size(), 6000u / 105);
    const auto resolved = check_trace(text, definitions);
    EXPECT_GT(resolved.size(), 3u);
    for (const auto& [name, times] : resolved) EXPECT_EQ(times, 1) << name;
  }
}

TEST(Reason, AShareOfDefinitionsIsThatShareAndTheTraceGoesRound) {
  for (const double share : {0.02, 0.05, 0.1, 0.2}) {
    SCOPED_TRACE(share);
    for (uint64_t index = 0; index < 4; ++index) {
      const TaskText text = text_of("reason", 20000, index, {.definitions = share});
      EXPECT_GE(text.text.size(), 20000u);
      EXPECT_LT(text.text.size(), 21500u);  // ends with the line that fills it and a recap; 0.2 goes round about once
      const auto question = static_cast<double>(text.text.find("<|question|>"));
      EXPECT_NEAR(question / static_cast<double>(text.text.size()), share, 0.1 * share);
      Definitions definitions = definitions_of(text);
      const auto resolved = check_trace(text, definitions);
      EXPECT_EQ(resolved.size(), definitions.size());
      // Every round has a line for each quantity but the last, which ends where the text is full.
      const auto [least, most] = std::minmax_element(resolved.begin(), resolved.end(),
                                                     [](const auto& a, const auto& b) { return a.second < b.second; });
      EXPECT_LE(most->second - least->second, 1);
      EXPECT_GE(least->second, static_cast<int>(0.35 / share));
    }
  }
}

// The tokens before `seen` that the rest of the trace looks up: of each link the newest place that states what it
// needs.
size_t working_set(const Sample& sample, int32_t seen) {
  std::set<int32_t> tokens;
  for (const Link& link : sample.links) {
    if (link.query_begin < seen) continue;
    const std::pair<int32_t, int32_t>* newest = nullptr;
    for (const auto& source : link.sources)
      if (source.second <= seen && (!newest || source.first > newest->first)) newest = &source;
    if (!newest) continue;
    for (int32_t token = newest->first; token < newest->second; ++token) tokens.insert(token);
  }
  return tokens.size();
}

TEST(Reason, TheWorkingSetOfFewDefinitionsFitsWhereTheUsualDoesNot) {
  const auto largest = [](const TaskOptions& options) {
    size_t tokens = 0;
    for (uint64_t index = 0; index < 4; ++index) {
      const Sample sample = sample_of("reason", 8192, index, options);
      EXPECT_EQ(sample.ids.size(), 8192u);
      for (int32_t seen = 1024; seen < 8192; seen += 256) tokens = std::max(tokens, working_set(sample, seen));
    }
    return tokens;
  };
  EXPECT_LE(largest({.definitions = 0.04}), 1024u - 256u);
  EXPECT_GT(largest({}), 1024u);
  EXPECT_NEAR(sample_of("reason", 8192, 0, {.definitions = 0.04}).context_tokens, 0.04 * 8192, 0.008 * 8192);
  EXPECT_GT(sample_of("reason", 8192).context_tokens, 0.2 * 8192);
}

// The trace is part of what is read, and each question is answered by a value that it states.
TEST(Reason, AsksBehindTheTraceForValuesThatItStates) {
  const TaskText text = text_of("reason", 6000, 0, {.questions = 5});
  ASSERT_EQ(text.questions.size(), 5u);
  const std::string_view read = part(text, 0, text.questions.front().begin);
  Definitions definitions = definitions_of(text);
  EXPECT_EQ(definitions.size(), 6000u / 105);
  std::set<std::string_view> names;
  for (const QuestionSpan& question : text.questions) {
    EXPECT_EQ(part(text, question.begin, question.prefix), "Recap: ");
    const std::string_view prefix = part(text, question.prefix, question.answer);
    ASSERT_TRUE(prefix.ends_with(" = "));
    names.insert(prefix);
    const std::string stated = fmt::format("{}{}", prefix, question.answers.front());
    EXPECT_EQ(part(text, question.answer, question.end), question.answers.front() + ".\n");
    // "name = 447." as a given one, "name = ... = 447." as a computed one
    const size_t line = read.find(fmt::format(" {}", prefix), read.find("<|answer|>"));
    ASSERT_NE(line, std::string_view::npos) << stated;
    EXPECT_TRUE(read.substr(0, read.find('\n', line)).ends_with(fmt::format("= {}.", question.answers.front())))
        << stated;
  }
  EXPECT_EQ(names.size(), 5u);
}

TEST(Reason, RefusesAShareOfDefinitionsThatCannotBeMet) {
  EXPECT_EQ(error_of({.task = "reason", .tokens = 512, .options = {.definitions = 0.3}}),
            "task reason: definitions is 0.3, expected a share above 0 and at most 0.2");
  EXPECT_NE(error_of({.task = "reason", .tokens = 512, .options = {.definitions = 0.05}}).find("expected at least 6"),
            std::string::npos);
  EXPECT_NE(error_of({.task = "kv", .tokens = 512, .options = {.definitions = 0.1}}).find("no option definitions"),
            std::string::npos);
}

TEST(Reason, LinksLeadToTheSameValueOrToTheQuotedDefinition) {
  const TaskText text = text_of("reason", 20000);
  const size_t question = text.text.find("<|question|>");
  size_t from_context = 0;
  size_t from_trace = 0;
  for (const UsefulLink& link : text.links) {
    const auto query = part(text, link.query_begin, link.query_end);
    for (const auto& [begin, end] : link.sources) {
      const auto source = part(text, begin, end);
      if (begin < question) {
        ++from_context;
        EXPECT_TRUE(source.ends_with(fmt::format(" = {}", query))) << source << " for " << query;
      } else {
        ++from_trace;
        EXPECT_EQ(source, query);
        // It is stated there as the value of a name: "name = 447," or "... = 447."
        EXPECT_EQ(part(text, begin - 3, begin), " = ");
      }
    }
  }
  EXPECT_GT(from_context, 100u);
  EXPECT_GT(from_trace, 100u);
}

TEST(Reason, FillsAnExactLengthWithTrace) {
  const Sample sample = sample_of("reason", 4096);
  EXPECT_EQ(sample.labels.back(), Label::kAnswer);
  EXPECT_GT(sample.context_tokens, 800);
  EXPECT_LT(sample.context_tokens, 2048);
  for (const Link& link : sample.links) EXPECT_LE(link.query_end, 4096);
}

// A draw that comes no nearer to the length must not be drawn again and again: these stopped at 75 %, 52 % and 68 % of
// it, where more hay (of other sentences, or fewer but longer pairs) fits.
TEST(MakeSample, TheSearchForALengthDoesNotGetStuck) {
  const auto filled = [](const std::string& task, int tokens, uint64_t index, uint64_t seed) {
    const Sample sample = make_sample({.task = task, .tokens = tokens, .seed = seed, .index = index},
                                      ref::shipped_tokenizer(), ref::shipped_texts());
    EXPECT_LE(std::ssize(sample.ids), tokens);
    return static_cast<double>(sample.ids.size()) / tokens;
  };
  EXPECT_GE(filled("needle", 1024, 0, 11), 0.95);
  EXPECT_GE(filled("kv", 224, 6, 11), 0.95);
  EXPECT_GE(filled("needle", 16384, 2, 1), 0.97);
}

TEST(MakeSample, RefusesWhatCannotBeMet) {
  EXPECT_NE(error_of({.task = "needles", .tokens = 512}).find("frequent-words, fwe, kv, math, needle, niah-multikey-1"),
            std::string::npos);
  EXPECT_NE(error_of({.task = "kv", .tokens = 512, .options = {.hops = 2}}).find("questions"), std::string::npos);
  EXPECT_NE(error_of({.task = "needle", .tokens = 512, .options = {.needles = 0}}).find("needles is 0"),
            std::string::npos);
  EXPECT_NE(error_of({.task = "needle", .tokens = 512, .length = Length::kExact}).find("at_most"), std::string::npos);
  EXPECT_NE(
      error_of({.task = "qa-1", .tokens = 512}).find("task qa-1 is not generated, expected a JSON-lines data set"),
      std::string::npos);
  EXPECT_NE(
      error_of({.task = "needle", .tokens = 512, .options = {.depth = 1.5}}).find("depth is 1.5, expected 0 to 1"),
      std::string::npos);
  EXPECT_NE(
      error_of({.task = "kv", .tokens = 512, .options = {.wording = Wording::kNeutral}}).find("no option wording"),
      std::string::npos);
  EXPECT_NE(error_of({.task = "vt", .tokens = 512, .options = {.hay = Hay::kNeedles}}).find("book, code or noise"),
            std::string::npos);
  EXPECT_NE(error_of({.task = "book", .tokens = 1}).find("tokens is 1"), std::string::npos);
  EXPECT_NE(error_of({.task = "needle", .tokens = 16}).find("expected at least"), std::string::npos);
  EXPECT_NE(error_of({.task = "book", .tokens = 200'000}).find("longest document"), std::string::npos);
  EXPECT_NE(error_of({.task = "math", .tokens = 200'000}).find("gives at most"), std::string::npos);
}

TEST(MakeSample, TakesAnotherFirstToken) {
  EXPECT_EQ(
      make_sample({.task = "book", .tokens = 64, .first_token = 7}, ref::shipped_tokenizer(), ref::shipped_texts())
          .ids[0],
      7);
}

// What a text was drawn from is known where it was drawn from one document, and that document has it.
TEST(MakeSample, NamesItsDocument) {
  for (const char* name : {"book", "code", "sentence", "needle", "variable-tracking", "niah-single-2"}) {
    SCOPED_TRACE(name);
    const DrawnTask drawn =
        draw_task({.task = name, .tokens = 512, .seed = 5}, ref::shipped_tokenizer(), ref::shipped_texts());
    ASSERT_FALSE(drawn.sample.document.empty());
    EXPECT_EQ(drawn.sample.document, drawn.text.document);
    const bool is_code =
        std::none_of(ref::shipped_texts().books.begin(), ref::shipped_texts().books.end(),
                     [&](const Document& document) { return document.source == drawn.sample.document; });
    const auto& documents = is_code ? ref::shipped_texts().code : ref::shipped_texts().books;
    const auto document = std::find_if(documents.begin(), documents.end(), [&](const Document& candidate) {
      return candidate.source == drawn.sample.document;
    });
    ASSERT_NE(document, documents.end());
    // Statements stand between its sentences, so a stretch of a few dozen bytes is looked for, not the text.
    bool found = false;
    for (size_t at = 0; at + 40 < drawn.text.text.size() && !found; at += 20) {
      found = document->text.find(drawn.text.text.substr(at, 40)) != std::string::npos;
    }
    EXPECT_TRUE(found);
  }
  for (const char* name : {"reason", "math", "kv", "niah-single-1"}) {
    EXPECT_EQ(draw_task({.task = name, .tokens = 512, .seed = 5}, ref::shipped_tokenizer(), ref::shipped_texts())
                  .sample.document,
              "")
        << name;
  }
}

TEST(MakeSample, KeepsAWholeReasoningTextWhereAsked) {
  const Sample sample = make_sample({.task = "reason", .tokens = 2048, .seed = 3, .length = Length::kAtMost},
                                    ref::shipped_tokenizer(), ref::shipped_texts());
  const std::string text = decode(sample, 1, static_cast<int32_t>(sample.ids.size()));
  EXPECT_NE(text.rfind("Therefore "), std::string::npos);
  EXPECT_LE(sample.ids.size(), 2048u);
}

}  // namespace
}  // namespace kv
