#include "sim/tasks/text_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kernels/error.h"
#include "sim/io/xz.h"
#include "sim/model/tokenizer/tokenizer.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

TEST(TextDataFiles, AreSmallReadableAndLongEnough) {
  const std::filesystem::path folder = ref::source_path("experiments/data");
  uintmax_t bytes = 0;
  for (const char* name : {"books.jsonl.xz", "code.jsonl.xz", "gsm8k.jsonl.xz"})
    bytes += std::filesystem::file_size(folder / name);
  EXPECT_LE(bytes, 700'000u);
  const TextData data = TextData::load(folder);
  const Tokenizer tokenizer = Tokenizer::load(ref::source_path("experiments/models/reference/tokenizer.json"));
  const auto long_books = std::count_if(data.books.begin(), data.books.end(),
                                        [](const Document& document) { return document.text.size() >= 60'000; });
  EXPECT_GE(long_books, 12);
  for (const auto* documents : {&data.books, &data.code, &data.math})
    for (const Document& document : *documents)
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(document.text)), document.text) << document.source;
}

TEST(TextDataFiles, NameTheLineThatIsDamaged) {
  const test::TempFolder folder;
  const auto error = [&](const std::string& content) -> std::string {
    std::ofstream(folder / "x.jsonl") << content;
    try {
      load_documents(folder / "x.jsonl");
    } catch (const UserError& caught) {
      return caught.what();
    }
    return "";
  };
  const std::string good = R"({"text":"a","source":"b","license":"c"})"
                           "\n";
  EXPECT_EQ(error(good), "");
  EXPECT_NE(error(good + "{\n").find("x.jsonl:2"), std::string::npos);
  EXPECT_NE(error(good + "7\n").find("x.jsonl:2: 7"), std::string::npos);
  EXPECT_NE(error(good + good + R"({"text":"a","source":"b"})").find("x.jsonl:3: \"license\" is missing"),
            std::string::npos);
  EXPECT_NE(error(R"({"text":"","source":"b","license":"c"})").find("\"text\""), std::string::npos);
  EXPECT_NE(error("").find("empty"), std::string::npos);

  std::filesystem::remove(folder / "x.jsonl");
  std::ofstream(folder / "x.jsonl.xz", std::ios::binary) << xz(good + good);
  EXPECT_EQ(load_documents(folder / "x.jsonl").size(), 2u);
  EXPECT_THROW(TextData::load(folder / "nowhere"), UserError);
}

}  // namespace
}  // namespace kv
