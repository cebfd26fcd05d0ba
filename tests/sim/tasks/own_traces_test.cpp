#include "sim/tasks/own_traces.h"

#include <gtest/gtest.h>

#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

using test::replaced;
using test::user_error;

OwnTraces example() {
  return {.recipe = {.model = "m",
                     .model_sha256 = "aa",
                     .vocabulary = 10,
                     .vocabulary_sha256 = "bb",
                     .prompts = "p.jsonl",
                     .prompts_sha256 = "cc",
                     .wording = "chatml",
                     .temperature = 0.7,
                     .top_p = 0.95,
                     .seed = 1,
                     .tokens = 6,
                     .turns = 2,
                     .repetition = 0.5,
                     .device = "cpu"},
          .origin = R"({"commit":"dd"})",
          .attempts = {{.refused = "repeats itself", .repetition = 0.75, .written = 4},
                       {.repetition = 0.25, .written = 3, .turns = {{2, 2}, {1, 1}}, .ids = {1, 2, 3, 4, 5, 9}}}};
}

TEST(OwnTraces, AreReadAsTheyWereWritten) {
  const std::string text = format_own_traces(example());
  const OwnTraces read = parse_own_traces(text, "f");
  EXPECT_EQ(read.recipe, example().recipe);
  EXPECT_EQ(read.origin, example().origin);
  EXPECT_EQ(read.attempts, example().attempts);
  EXPECT_EQ(format_own_traces(read), text);
  ASSERT_EQ(read.traces().size(), 1u);
  EXPECT_EQ(read.traces()[0], &read.attempts[1]);
}

TEST(OwnTraces, PromptsAreQuestionsAndWhatWasWrittenAnswers) {
  const OwnAttempt trace = example().attempts[1];
  const Sample whole = sample_of(trace, 6);
  EXPECT_EQ(whole.ids, trace.ids);
  constexpr Label kPrompt = Label::kQuestion, kWritten = Label::kAnswer;
  EXPECT_EQ(whole.labels, (std::vector<Label>{kPrompt, kPrompt, kWritten, kWritten, kPrompt, kWritten}));
  EXPECT_EQ(whole.context_tokens, 2);
  const Sample start = sample_of(trace, 3);
  EXPECT_EQ(start.ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(start.labels, (std::vector<Label>{kPrompt, kPrompt, kWritten}));
}

TEST(OwnTraces, AnUnfinishedFileHasNoEndAndMayBeTorn) {
  const std::string text = format_own_traces(example());
  const std::string torn = text.substr(0, text.rfind("{\"end\"") - 5);
  const OwnTraces read = parse_own_traces(torn, "f", OwnFile::kPartial);
  EXPECT_EQ(read.attempts.size(), 1u);
  EXPECT_EQ(user_error([&] { parse_own_traces("", "f", OwnFile::kPartial); }),
            "f: is empty, expected the head of own traces");
}

// Every lie is one line that names the file.
TEST(OwnTraces, HostileFilesAreRefused) {
  const std::string text = format_own_traces(example());
  const auto refused = [](const std::string& lying) {
    std::string message = user_error([&] { parse_own_traces(lying, "f"); });
    EXPECT_TRUE(message.starts_with("f:")) << message;
    return message;
  };
  for (size_t end = 0; end < text.size(); ++end) refused(text.substr(0, end));  // cut anywhere
  EXPECT_EQ(refused(replaced(text, "\"traces\":1", "\"traces\":2")),
            "f:4: the end counts 2 attempts and 2 traces, the file holds 2 and 1");
  EXPECT_EQ(refused(replaced(text, ",9]", ",10]")), "f:3: ids[5] is 10, expected a token id below 10");
  EXPECT_EQ(refused(replaced(text, ",9]", ",-1]")), "f:3: ids[5] is -1, expected a token id below 10");
  EXPECT_EQ(refused(replaced(text, ",9]", ",9.5]")), "f:3: ids[5] is 9.5, expected a token id below 10");
  EXPECT_EQ(refused(replaced(text, ",9]", ",4294967296]")), "f:3: ids[5] is 4294967296, expected a token id below 10");
  EXPECT_EQ(refused(replaced(text, ",9]", "]")),
            "f:3: 5 ids, turns of 3 and 3 tokens, 3 written; expected 6 tokens in all");
  EXPECT_EQ(refused(replaced(text, "[2,2]", "[3,2]")),
            "f:3: 6 ids, turns of 4 and 3 tokens, 3 written; expected 6 tokens in all");
  EXPECT_EQ(refused(replaced(text, "[2,2]", "[0,4]")),
            "f:3: turns is [0,4], expected two counts, the tokens of a prompt and of what follows it");
  EXPECT_EQ(refused(replaced(text, "[2,2]", "[2,-2]")),
            "f:3: turns is [2,-2], expected two counts, the tokens of a prompt and of what follows it");
  EXPECT_EQ(refused(replaced(text, "[2,2],", "[1,1],[1,1],")), "f:3: 3 turns, expected at most 2");
  EXPECT_EQ(refused(replaced(text, "\"attempt\":1", "\"attempt\":0")), "f:3: attempt is 0, expected 1");
  refused(replaced(text, "\"written\":3", "\"written\":7"));
  refused(replaced(text, "\"refused\":\"repeats itself\"", "\"refused\":3"));
  refused(replaced(text, "repeats itself", "a\\nb"));
  refused(replaced(text, "repeats itself", std::string(201, 'a')));
  refused(replaced(text, "\"repetition\":0.75", "\"repetition\":-1"));
  refused(replaced(text, "\"tokens\":6", "\"tokens\":5"));
  refused(replaced(text, "\"tokens\":6", "\"tokens\":1e99"));
  refused(replaced(text, "\"seed\":1", "\"seed\":1,\"more\":1"));
  refused(replaced(text, "\"device\":\"cpu\"", "\"device\":\"\""));
  refused(replaced(text, "kvlab-own-traces", "other"));
  refused(replaced(text, "\"version\":1", "\"version\":2"));
  refused(replaced(text, R"({"commit":"dd"})", "3"));
  refused(text + "\n");
  refused(text + text);
  OwnTraces none = example();
  none.attempts.pop_back();
  EXPECT_EQ(refused(format_own_traces(none)), "f:3: end.traces is 0, expected an integer, 1 to 2147483647");
}

}  // namespace
}  // namespace kv
