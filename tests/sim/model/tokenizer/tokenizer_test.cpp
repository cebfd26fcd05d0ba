#include "sim/model/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

using Ids = std::vector<int32_t>;

const Tokenizer& reference() {
  static const Tokenizer kTokenizer = Tokenizer::load(ref::source_path("experiments/models/reference/tokenizer.json"));
  return kTokenizer;
}

// A vocabulary of the bytes of "abcdefg12.", the space (written as U+0120) and what the merges make.
std::string small_json(const std::string& pre_tokenizers, const std::string& added = "[]",
                       const std::string& merges = R"(["a b", ["ab", "c"], "Ġ a", "1 2"])",
                       const std::string& normalizer = "null", const std::string& model_extra = "") {
  return R"({"added_tokens":)" + added + R"(,"normalizer":)" + normalizer +
         R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" + pre_tokenizers + R"(]},"model":{"type":"BPE",)" +
         model_extra +
         R"("vocab":{"a":0,"b":1,"c":2,"d":3,"1":4,"2":5,".":6,"Ġ":7,"ab":8,"abc":9,"Ġa":10,"12":11,"x":12,"Ã":13,"©":14},"merges":)" +
         merges + "}}";
}

const std::string kBytes = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})";

std::string split(const std::string& pattern, const std::string& behavior, const std::string& invert = "false") {
  return R"({"type":"Split","pattern":)" + pattern + R"(,"behavior":")" + behavior + R"(","invert":)" + invert + "}," +
         kBytes;
}

Tokenizer small(const std::string& pre_tokenizers, const std::string& added = "[]") {
  return Tokenizer::from_json(small_json(pre_tokenizers, added), "small");
}

// The pieces show as tokens where no merge crosses their borders.
std::string pieces(const Tokenizer& tokenizer, std::string_view text) {
  std::string result;
  for (const int32_t id : tokenizer.encode(text)) {
    if (!result.empty()) result += '|';
    result += tokenizer.decode_token(id);
  }
  return result;
}

std::string error_of(const std::string& json) {
  try {
    Tokenizer::from_json(json, "t.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Tokenizer, GivesTheIdsOfTheReferenceCases) {
  std::ifstream file(ref::source_path("tests/data/reference/tokenizer_cases.json"));
  ASSERT_TRUE(file) << "the reference cases are missing";
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 0u);
  for (const auto& known : cases) {
    const auto text = known["text"].get<std::string>();
    EXPECT_EQ(reference().encode(text), known["ids"].get<Ids>()) << text.substr(0, 80);
    EXPECT_EQ(reference().decode(reference().encode(text)), text);
  }
}

TEST(Tokenizer, DecodesEveryCharacterThatItEncodes) {
  std::string text;
  const auto append = [&text](uint32_t code) {
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += static_cast<char>(0xC0 | code >> 6);
      text += static_cast<char>(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      text += static_cast<char>(0xE0 | code >> 12);
      text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
      text += static_cast<char>(0x80 | (code & 0x3F));
    } else {
      text += static_cast<char>(0xF0 | code >> 18);
      text += static_cast<char>(0x80 | (code >> 12 & 0x3F));
      text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  };
  for (uint32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 97)
    if (code < 0xD800 || code > 0xDFFF) append(code);
  EXPECT_EQ(reference().decode(reference().encode(text)), text);
  EXPECT_EQ(reference().encode(""), Ids{});
}

TEST(Tokenizer, KnowsItsTokensByTheirBytes) {
  EXPECT_EQ(reference().vocab_size(), 8192);
  EXPECT_EQ(reference().token_id("<|question|>"), 1);
  EXPECT_EQ(reference().token_id("no such token"), std::nullopt);
  for (int32_t id = 0; id < reference().vocab_size(); ++id)
    EXPECT_EQ(reference().token_id(reference().decode_token(id)), id);
  EXPECT_THROW(reference().decode_token(8192), UserError);
  EXPECT_THROW(reference().decode(Ids{-1}), UserError);
}

TEST(Tokenizer, TakesAMegabyteWellUnderTwoSeconds) {
  std::string text;
  for (int i = 0; text.size() < 1'000'000; ++i) text += fmt::format("word{} of {} the line, don't\n", i, i * 7919);
  const auto start = std::chrono::steady_clock::now();
  const auto ids = reference().encode(text);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(reference().decode(ids), text);
  EXPECT_LT(elapsed.count(), 20.0);  // ten times the aim: also for sanitizers and a busy machine
}

TEST(Tokenizer, MergesALongPieceInLinearithmicTime) {
  const Tokenizer tokenizer = small(kBytes);
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "abc";
  EXPECT_EQ(tokenizer.encode(text), Ids(200'000, 9));
}

TEST(Tokenizer, MergesTheLowestRankFirstAndTheLeftmostOfEquals) {
  std::string json = small_json(kBytes, "[]", R"(["b c", "a b", "x x"])");
  const std::string x = R"("x":12)";
  json.replace(json.find(x), x.size(), R"("x":12,"bc":20,"xx":21)");
  const Tokenizer tokenizer = Tokenizer::from_json(json, "small");
  EXPECT_EQ(pieces(tokenizer, "abc"), "a|bc");  // "b c" has rank 0, "a b" rank 1
  EXPECT_EQ(pieces(tokenizer, "xxx"), "xx|x");  // equal ranks: left first
  EXPECT_EQ(pieces(tokenizer, "abxx"), "ab|xx");
}

TEST(Tokenizer, FollowsEverySplitBehavior) {
  const std::string dot = R"({"Regex":"\\."})";
  // "12" and "ab" merge only inside one piece, so the tokens show where the pieces end.
  EXPECT_EQ(pieces(small(split(dot, "Isolated")), "ab.12"), "ab|.|12");
  EXPECT_EQ(pieces(small(split(dot, "Removed")), "ab.12"), "ab|12");
  const std::string literal = R"({"String":"1"})";
  EXPECT_EQ(pieces(small(split(literal, "MergedWithNext")), "a12"), "a|12");
  EXPECT_EQ(pieces(small(split(literal, "MergedWithPrevious")), "a12"), "a|1|2");
  const std::string digit = R"({"String":"2"})";
  EXPECT_EQ(pieces(small(split(digit, "MergedWithPrevious")), "a12"), "a|12");
  EXPECT_EQ(pieces(small(split(digit, "MergedWithNext")), "a12"), "a|1|2");
  EXPECT_EQ(pieces(small(split(literal, "Isolated")), "a12"), "a|1|2");
  const std::string a_or_b = R"({"Regex":"[ab]"})";
  EXPECT_EQ(pieces(small(split(a_or_b, "Contiguous")), "abcab"), "ab|c|ab");
  EXPECT_EQ(pieces(small(split(a_or_b, "Isolated")), "abcab"), "a|b|c|a|b");
}

TEST(Tokenizer, InvertRemovesWhatDoesNotMatch) {
  EXPECT_EQ(pieces(small(split(R"({"Regex":"[ab]+"})", "Removed", "true")), "abcab.ab"), "ab|ab|ab");
}

TEST(Tokenizer, EmptyMatchesCutWithoutTakingAnything) {
  EXPECT_EQ(pieces(small(split(R"({"Regex":"x*"})", "Isolated")), "abxc"), "a|b|x|c");
  EXPECT_EQ(pieces(small(split(R"json({"Regex":"(?=b)"})json", "Isolated")), "abab"), "a|b|a|b");
}

TEST(Tokenizer, DigitsSplitAloneOrInRuns) {
  EXPECT_EQ(pieces(small(R"({"type":"Digits","individual_digits":true},)" + kBytes), "ab12"), "ab|1|2");
  EXPECT_EQ(pieces(small(R"({"type":"Digits","individual_digits":false},)" + kBytes), "ab12"), "ab|12");
}

TEST(Tokenizer, ByteLevelSplitsLikeGpt2AndAddsThePrefixSpace) {
  EXPECT_EQ(pieces(small(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})"), "a a12"), "a| a|12");
  EXPECT_EQ(pieces(small(R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":true})"), "a a"), " a| a");
  EXPECT_EQ(pieces(small(R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false})"), "a"), " a");
}

TEST(Tokenizer, LooksWholeWordsUpWhereMergesAreIgnored) {
  // No merge makes "abc" from "ab" here.
  const std::string json = small_json(kBytes, "[]", R"(["a b"])", "null", R"("ignore_merges":true,)");
  const Tokenizer tokenizer = Tokenizer::from_json(json, "small");
  EXPECT_EQ(tokenizer.encode("abc"), Ids{9});
  EXPECT_EQ(tokenizer.encode("abcd"), (Ids{8, 2, 3}));
}

TEST(Tokenizer, ComposesWhereTheNormalizerIsNfc) {
  // "e" + U+0301 has no bytes in this vocabulary, U+00E9 = C3 A9 has.
  for (const char* normalizer : {R"({"type":"NFC"})", R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})"}) {
    const Tokenizer tokenizer = Tokenizer::from_json(small_json(kBytes, "[]", "[]", normalizer), "small");
    EXPECT_EQ(tokenizer.encode("e\xCC\x81"), (Ids{13, 14}));
  }
  EXPECT_THROW(small(kBytes).encode("e\xCC\x81"), UserError);
}

TEST(Tokenizer, FindsTheLongestAddedTokenAndStripsWhereItSays) {
  const Tokenizer tokenizer = small(kBytes, R"([{"id":30,"content":"<a","special":true},
      {"id":31,"content":"<ab>","special":true,"lstrip":true,"rstrip":true},
      {"id":32,"content":"dd","special":false,"normalized":true}])");
  EXPECT_EQ(tokenizer.encode("a<ab>b"), (Ids{0, 31, 1}));
  EXPECT_EQ(tokenizer.encode("a \n<ab>  b"), (Ids{0, 31, 1}));
  EXPECT_EQ(tokenizer.encode("a <a b"), (Ids{0, 7, 30, 7, 1}));
  EXPECT_EQ(tokenizer.encode("ddd"), (Ids{32, 3}));
  EXPECT_EQ(tokenizer.decode(Ids{31}), "<ab>");
  EXPECT_EQ(tokenizer.vocab_size(), 33);
}

TEST(Tokenizer, NamesTheByteThatIsNotUtf8) {
  const auto message = [](std::string_view text) -> std::string {
    try {
      reference().encode(text);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("ab\xFF").find("byte 2 (0xFF)"), std::string::npos);
  EXPECT_NE(message("\xC3").find("byte 0"), std::string::npos);           // cut off
  EXPECT_NE(message("a\xED\xA0\x80").find("byte 1"), std::string::npos);  // a surrogate
  EXPECT_NE(message("\xC0\xAF").find("byte 0"), std::string::npos);       // overlong
}

TEST(Tokenizer, GivesUpOnAPatternThatBacktracksForever) {
  const Tokenizer tokenizer = small(split(R"json({"Regex":"(a+)+$"})json", "Isolated"));
  EXPECT_THROW(tokenizer.encode(std::string(64, 'a') + "b"), UserError);
}

TEST(Tokenizer, RefusesOtherKindsByNameAndPointsToIds) {
  const auto refused = [](const std::string& json, const std::string& kind) {
    const std::string message = error_of(json);
    EXPECT_NE(message.find(kind), std::string::npos) << message;
    EXPECT_NE(message.find("--ids"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  };
  refused(R"({"model":{"type":"Unigram","vocab":[]}})", "Unigram");
  refused(R"({"model":{"type":"WordPiece","vocab":{}}})", "WordPiece");
  refused(small_json(R"({"type":"Metaspace","replacement":"_"})"), "Metaspace");
  refused(small_json(kBytes + "," + kBytes), "ByteLevel");
  refused(small_json(R"({"type":"Digits","individual_digits":true})"), "without ByteLevel");
  refused(small_json(kBytes, "[]", "[]", R"({"type":"Lowercase"})"), "Lowercase");
  refused(small_json(kBytes, "[]", "[]", "null", R"("byte_fallback":true,)"), "byte_fallback");
  refused(small_json(kBytes, "[]", "[]", "null", R"("end_of_word_suffix":"</w>",)"), "</w>");
  refused(small_json(kBytes, R"([{"id":40,"content":"word","single_word":true}])"), "single_word");
}

TEST(Tokenizer, NamesWhatIsDamaged) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not valid JSON"},
      {"{\n  \"model\": }", "line 2"},
      {"[]", "expected an object"},
      {"{}", "\"model\" is missing"},
      {R"({"model":{"type":"BPE"}})", "\"vocab\" is missing"},
      {R"({"model":{"type":"BPE","vocab":{},"merges":[]}})", "\"vocab\" is empty"},
      {R"({"model":{"type":"BPE","vocab":{"a":0}}})", "\"merges\" is missing"},
      {R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})", "id -1"},
      {R"({"model":{"type":"BPE","vocab":{"a":1.5},"merges":[]}})", "id 1.5"},
      {R"({"model":{"type":"BPE","vocab":{"a":4000000000},"merges":[]}})", "id 4000000000"},
      {R"({"model":{"type":"BPE","vocab":{"a":18446744073709551615},"merges":[]}})", "expected an integer"},
      {R"({"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}})", "share id 0"},
      {R"({"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}})", "occurs twice"},
      {small_json(kBytes, "[]", R"(["a zz"])"), "\"zz\""},
      {small_json(kBytes, "[]", R"(["a d"])"), "\"ad\""},
      {small_json(kBytes, "[]", R"(["a b c"])"), "merge 0"},
      {small_json(kBytes, "[]", R"([["a"]])"), "merge 0"},
      {small_json(kBytes, "[]", R"([7])"), "merge 0"},
      {small_json(kBytes, R"([{"id":3,"content":"new"}])"), "share id 3"},
      {small_json(kBytes, R"([{"id":50,"content":"ab"}])"), "id 50"},
      {small_json(kBytes, R"([{"id":50,"content":""}])"), "empty"},
      {small_json(kBytes, R"([7])"), "added_tokens"},
      {small_json(split(R"({"Regex":"("})", "Isolated")), "regular expression"},
      {small_json(split(R"({"Regex":"a"})", "Sideways")), "Sideways"},
      {std::string(100'000, '['), "nested deeper"},
  };
  for (const auto& [json, expected] : cases) {
    const std::string message = error_of(json);
    EXPECT_NE(message.find(expected), std::string::npos) << json.substr(0, 100) << "\n" << message;
    EXPECT_EQ(message.rfind("tokenizer t.json: ", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  EXPECT_THROW(Tokenizer::load("/nonexistent/tokenizer.json"), UserError);
}

TEST(Tokenizer, AcceptsPostProcessorsWithoutApplyingThem) {
  std::string json = small_json(kBytes, R"([{"id":20,"content":"<s>","special":true}])");
  json.insert(1, R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}}]},)");
  EXPECT_EQ(Tokenizer::from_json(json, "small").encode("ab"), Ids{8});
}

}  // namespace
}  // namespace kv
