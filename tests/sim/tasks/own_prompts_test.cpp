#include "sim/tasks/own_prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "sim/io/hash.h"
#include "sim/io/xz.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"
#include "tests/support/shipped_texts.h"

namespace kv {
namespace {

using Ids = std::vector<int32_t>;
using test::user_error;

TEST(OwnPrompts, AreALineEachPackedOrNot) {
  const test::TempFolder folder;
  const std::string text = "{\"prompt\": \"a\", \"source\": 3}\n\n{\"prompt\": \"b\"}\n";
  test::write_file(folder / "p.jsonl", text);
  const PromptFile plain = load_prompts(folder / "p.jsonl");
  EXPECT_EQ(plain.prompts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(plain.sha256, sha256_hex(text));
  test::write_file(folder / "q.jsonl.xz", xz(text));
  for (const char* name : {"q.jsonl", "q.jsonl.xz"}) {
    const PromptFile packed = load_prompts(folder / name);
    EXPECT_EQ(packed.prompts, plain.prompts) << name;
    EXPECT_EQ(packed.sha256, plain.sha256) << name;
  }
}

TEST(OwnPrompts, BadLinesAreNamed) {
  const test::TempFolder folder;
  const auto message = [&](const std::string& text) {
    test::write_file(folder / "p.jsonl", text);
    const std::string refusal = user_error([&] { load_prompts(folder / "p.jsonl"); });
    return refusal.substr(refusal.find("p.jsonl"));
  };
  EXPECT_EQ(message("{\"prompt\": \"a\"}\n{}\n"), "p.jsonl:2: \"prompt\" is missing");
  EXPECT_EQ(message("{\"prompt\": 3}\n"), "p.jsonl:1: \"prompt\" is 3, expected a text");
  EXPECT_EQ(message("{\"prompt\": \"\"}\n"), "p.jsonl:1: \"prompt\" is \"\", expected a text");
  EXPECT_EQ(message("[1]\n"), "p.jsonl:1: [1], expected an object with a prompt");
  EXPECT_EQ(message("\n"), "p.jsonl: is empty, expected one JSON object a line");
  EXPECT_TRUE(message("{\n").starts_with("p.jsonl:1: "));
}

TEST(OwnPrompts, AttemptsBeginWithDifferentPromptsAndNoneComesTwice) {
  PromptFile file;
  for (char c = 'a'; c < 'a' + 7; ++c) file.prompts.emplace_back(1, c);
  const OwnPrompts prompts(file, 1, std::nullopt, 0, ref::shipped_tokenizer());
  std::set<Ids> openings, orders;
  for (int attempt = 0; attempt < 7; ++attempt) {
    std::set<Ids> seen;
    Ids order;
    for (int turn = 0; turn < 7; ++turn) {
      const auto ids = prompts.turn(attempt, turn, 5);
      ASSERT_TRUE(ids);
      seen.insert(*ids);
      order.insert(order.end(), ids->begin(), ids->end());
    }
    EXPECT_EQ(seen.size(), 7u);
    EXPECT_EQ(prompts.turn(attempt, 7, 5), std::nullopt);
    openings.insert(*prompts.turn(attempt, 0, -1));
    orders.insert(order);
  }
  EXPECT_EQ(openings.size(), 7u);
  EXPECT_EQ(orders.size(), 7u);
  EXPECT_EQ(OwnPrompts(file, 1, std::nullopt, 0, ref::shipped_tokenizer()).turn(3, 4, 5), prompts.turn(3, 4, 5));
}

TEST(OwnPrompts, WithoutATemplateTheFirstTokenOpensEveryText) {
  const PromptFile file{.prompts = {"Once upon", "a time"}, .sha256 = ""};
  const OwnPrompts prompts(file, 1, std::nullopt, 0, ref::shipped_tokenizer());
  EXPECT_EQ(prompts.wording(), "plain");
  EXPECT_TRUE(prompts.stop_ids().empty());
  const Ids first = *prompts.turn(0, 0, -1);
  EXPECT_EQ(first.front(), 0);
  const std::string text = ref::shipped_tokenizer().decode(std::span(first).subspan(1));
  EXPECT_TRUE(text == "Once upon" || text == "a time") << text;
  // The end of a text that opens the next one stands once.
  const Ids after_end = *prompts.turn(0, 1, 0), after_other = *prompts.turn(0, 1, 7);
  EXPECT_NE(after_end.front(), 0);
  EXPECT_EQ(after_other.front(), 0);
  EXPECT_EQ(Ids(after_other.begin() + 1, after_other.end()), after_end);
}

TEST(OwnPrompts, WithATemplateTurnsAreMessages) {
  const PromptFile file{.prompts = {"Hi.", "Hi."}, .sha256 = ""};
  const OwnPrompts prompts(file, 1, ChatTemplate{}, 0, ref::shipped_tokenizer());
  EXPECT_EQ(prompts.wording(), "chatml");
  const auto text = [&](int turn, int32_t last) {
    return ref::shipped_tokenizer().decode(*prompts.turn(0, turn, last));
  };
  EXPECT_EQ(text(0, -1), "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n");
  // The reference tokenizer has no mark for the end of a message: after another end it is written out.
  EXPECT_EQ(text(1, 0), "<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_NE(user_error([&] { prompts.stop_ids(); }).find("<|im_end|>"), std::string::npos);
}

}  // namespace
}  // namespace kv
