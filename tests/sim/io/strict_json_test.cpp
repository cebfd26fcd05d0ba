#include "sim/io/strict_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

using test::user_error;

TEST(StrictJson, ParsesWhatIsHonest) {
  const auto value = parse_strict_json(R"({"a": [1, {"a": 2}], "b": {"a": null}})", "f");
  EXPECT_EQ(value["a"][1]["a"], 2);
}

TEST(StrictJson, SaysWhereTheSyntaxBreaks) {
  const std::string message = user_error([] { parse_strict_json("{\n \"a\": }", "f.json"); });
  EXPECT_TRUE(message.starts_with("f.json: not valid JSON: parse error at line 2, column 7")) << message;
  user_error([] { parse_strict_json("", "f"); });
  user_error([] { parse_strict_json("{} {}", "f"); });
  user_error([] { parse_strict_json("{\"a\": \"\xff\x01\n\"}", "f"); });
  user_error([] { parse_strict_json("[1e999]", "f"); });
}

TEST(StrictJson, RefusesAKeyThatOccursTwiceInOneObject) {
  EXPECT_EQ(user_error([] { parse_strict_json(R"([{"k": 1, "j": {}, "k": 2}])", "f"); }), "f: key \"k\" occurs twice");
}

TEST(StrictJson, RefusesDeepNestingBeforeItCanHurt) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_strict_json(nested(32), "f"));
  EXPECT_EQ(user_error([&] { parse_strict_json(nested(33), "f"); }), "f: nested deeper than 32 levels");
  EXPECT_EQ(user_error([&] { parse_strict_json(std::string(1'000'000, '['), "f"); }),
            "f: nested deeper than 32 levels");
}

TEST(StrictJson, QuotesAnyTextOnOneShortLine) {
  EXPECT_EQ(in_quotes("a\nb"), "\"a\\nb\"");
  EXPECT_LE(in_quotes(std::string(10'000, 'x')).size(), 130u);
  EXPECT_LE(shown_json(nlohmann::json(std::vector<int>(10'000, 7))).size(), 130u);
}

}  // namespace
}  // namespace kv
