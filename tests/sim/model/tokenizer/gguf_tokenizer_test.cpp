#include "sim/model/tokenizer/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/model/tokenizer/tokenizer.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/gguf_file.h"
#include "tests/support/gguf_model.h"

namespace kv {
namespace {

using ref::GgufBuilder;
using test::user_error;

// The bytes by their values, "12" (256), "ab" (257), "\u0120a" (258, a space and an a), "<s>" (259, control), "<think>"
// (260, user-defined) and "abc" (261), which no merge gives.
GgufBuilder small(std::string_view splitting) {
  GgufBuilder bytes;
  ref::put_byte_tokenizer(bytes, splitting);
  std::vector<std::string> tokens;
  const std::string file = bytes.bytes();
  const GgufFile parsed = GgufFile::from_bytes(std::as_bytes(std::span(file)), "bytes");
  for (const GgufValue& token : *parsed.array("tokenizer.ggml.tokens")) {
    tokens.emplace_back(std::get<std::string_view>(token.value));
  }
  std::vector<int32_t> types(256, 1);
  for (const auto& [token, type] :
       {std::pair("12", 1), {"ab", 1}, {"\xc4\xa0\x61", 1}, {"<s>", 3}, {"<think>", 4}, {"abc", 1}}) {
    tokens.emplace_back(token);
    types.push_back(type);
  }
  GgufBuilder builder;
  builder.put_text("tokenizer.ggml.model", "gpt2");
  builder.put_text("tokenizer.ggml.pre", splitting);
  builder.put_texts("tokenizer.ggml.tokens", tokens);
  builder.put_i32s("tokenizer.ggml.token_type", types);
  builder.put_texts("tokenizer.ggml.merges", std::vector<std::string>{"1 2", "\xc4\xa0 a", "a b"});
  return builder;
}

class GgufTokenizer : public testing::Test {
 protected:
  Tokenizer load(const GgufBuilder& builder) const {
    test::write_file(folder_ / "f.gguf", builder.bytes());
    return Tokenizer::load_gguf(folder_ / "f.gguf");
  }
  std::string refusal(const GgufBuilder& builder) const {
    const std::string message = user_error([&] { load(builder); });
    const size_t at = message.find("f.gguf: ");
    return at == message.npos ? message : message.substr(at + 8);
  }
  test::TempFolder folder_;
};

using Ids = std::vector<int32_t>;

TEST_F(GgufTokenizer, CutsTextsAsItsFamilyDoes) {
  // gpt-2 keeps digits together, smollm takes each alone; both put a space before the word.
  EXPECT_EQ(load(small("gpt-2")).encode("12 ab"), (Ids{256, 258, 'b'}));
  EXPECT_EQ(load(small("smollm")).encode("12 ab"), (Ids{'1', '2', 258, 'b'}));
  // llama-bpe takes digits by threes, and whole words that are tokens before any merge; qwen2 takes each digit alone.
  EXPECT_EQ(load(small("llama-bpe")).encode("12 abc"), (Ids{256, 258, 'b', 'c'}));
  EXPECT_EQ(load(small("llama-bpe")).encode("abc"), (Ids{261}));
  EXPECT_EQ(load(small("llama-bpe")).encode("0112"), (Ids{'0', '1', '1', '2'}));
  EXPECT_EQ(load(small("qwen2")).encode("12abc"), (Ids{'1', '2', 257, 'c'}));
}

TEST_F(GgufTokenizer, Qwen2ComposesCharacters) {
  // e and a combining acute accent become one character of two bytes.
  EXPECT_EQ(load(small("qwen2")).encode("e\xcc\x81"), (Ids{0xc3, 0xa9}));
  EXPECT_EQ(load(small("smollm")).encode("e\xcc\x81"), (Ids{'e', 0xcc, 0x81}));
}

TEST_F(GgufTokenizer, FindsControlAndUserDefinedTokensInATextAndDecodesThem) {
  const Tokenizer tokenizer = load(small("smollm"));
  const Ids ids = tokenizer.encode("<s>ab<think>\n");
  EXPECT_EQ(ids, (Ids{259, 257, 260, '\n'}));
  EXPECT_EQ(tokenizer.decode(ids), "<s>ab<think>\n");
  EXPECT_EQ(tokenizer.token_id(" a"), 258);
}

TEST_F(GgufTokenizer, RefusesOtherKindsAndSplittings) {
  GgufBuilder kind;
  kind.put_text("tokenizer.ggml.model", "llama");
  EXPECT_EQ(refusal(kind),
            "tokenizer.ggml.model is \"llama\", expected gpt2 (byte-level BPE); give token ids with --ids instead");
  EXPECT_EQ(refusal(small("tekken")),
            "tokenizer.ggml.pre is \"tekken\", expected one of gpt-2, smollm, llama-bpe, llama3, llama-v3, qwen2, "
            "deepseek-r1-qwen; give token ids with --ids instead");
  EXPECT_EQ(refusal(GgufBuilder()),
            "tokenizer.ggml.model is missing, expected gpt2 (byte-level BPE); give token ids with --ids instead");
}

TEST_F(GgufTokenizer, RefusesListsThatLie) {
  const auto with = [&](std::vector<std::string> tokens, std::vector<std::string> merges, std::vector<int32_t> types) {
    GgufBuilder builder;
    builder.put_text("tokenizer.ggml.model", "gpt2");
    builder.put_text("tokenizer.ggml.pre", "gpt-2");
    builder.put_texts("tokenizer.ggml.tokens", tokens);
    builder.put_i32s("tokenizer.ggml.token_type", types);
    builder.put_texts("tokenizer.ggml.merges", merges);
    return refusal(builder);
  };
  EXPECT_EQ(with({"a", "b", "a"}, {}, {1, 1, 1}), "tokenizer.ggml.tokens: entries 0 and 2 are both \"a\"");
  EXPECT_EQ(with({"a", "\xff"}, {}, {1, 1}), "tokenizer.ggml.tokens: entry 1 is \"\\ufffd\", expected a text in UTF-8");
  EXPECT_EQ(with({"a", "b"}, {}, {1}),
            "tokenizer.ggml.token_type is a list of 1, expected as many as there are tokens, 2");
  EXPECT_EQ(with({"a", "b"}, {"a c"}, {1, 1}), "merge 0 needs token \"c\", which is not in the vocabulary");
  EXPECT_EQ(with({"a", ""}, {}, {1, 1}), "token with id 1 is empty");
  GgufBuilder absent;
  absent.put_text("tokenizer.ggml.model", "gpt2");
  absent.put_text("tokenizer.ggml.pre", "gpt-2");
  EXPECT_EQ(refusal(absent), "tokenizer.ggml.tokens is missing, expected a list of texts");
}

}  // namespace
}  // namespace kv
