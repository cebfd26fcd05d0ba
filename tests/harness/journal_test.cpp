#include "harness/journal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "harness/files.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

class JournalFile : public testing::Test {
 protected:
  static std::string key(char letter) { return std::string(64, letter); }
  static FinishedUnit unit(double value) {
    return {.rows = {{.experiment = "e", .metric = "m", .value = value, .axes = {"8"}}}, .seconds = 1.5};
  }
  Journal open() const { return {folder_.path(), code_}; }
  fs::path file() const { return folder_ / "units" / (code_.substr(0, 16) + ".units"); }
  std::optional<double> value(char letter) const {
    const auto found = open().find(key(letter), axes_);
    return found ? found->rows.at(0).value : std::nullopt;
  }
  void store(char letter, double number) const { open().store(key(letter), axes_, unit(number)); }

  const std::vector<std::string> axes_ = {"budget"};
  const std::string code_ = std::string(40, 'c');
  test::TempFolder folder_;
};

TEST_F(JournalFile, GivesAUnitBackInTheDigitsThatRowsHave) {
  Journal journal = open();
  EXPECT_FALSE(fs::exists(folder_ / "units"));  // before the first unit
  const FinishedUnit stored = journal.store(key('a'), axes_, unit(1.0 / 3));
  EXPECT_EQ(stored.rows.at(0).value, 0.333333333);
  const auto found = open().find(key('a'), axes_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rows, stored.rows);
  EXPECT_EQ(found->seconds, 1.5);
  EXPECT_FALSE(open().find(key('b'), axes_));
  EXPECT_FALSE(open().find(key('a'), {"keep"}));
}

TEST_F(JournalFile, AUnitThatWasTornIsNotThereAndTheNextOnesAre) {
  store('a', 1);
  const auto whole = fs::file_size(file());
  store('b', 2);
  for (const auto left : {fs::file_size(file()) - 2, whole + 100, whole + 3, whole - 2}) {
    fs::resize_file(file(), left);
    EXPECT_EQ(value('a'), left >= whole ? std::optional(1.0) : std::nullopt) << left;
    EXPECT_FALSE(value('b')) << left;
    store('c', 3);
    EXPECT_EQ(value('a'), left >= whole ? std::optional(1.0) : std::nullopt) << left;
    EXPECT_FALSE(value('b')) << left;
    EXPECT_EQ(value('c'), 3.0) << left;
  }
}

TEST_F(JournalFile, AUnitThatWasAlteredIsNotThereAndTheOthersAre) {
  for (const char letter : {'a', 'b', 'c'}) store(letter, letter);
  std::string content = read_file(file());
  content[content.find(",m,") + 1] = 'n';
  write_atomically(file(), content);
  EXPECT_FALSE(value('a'));
  EXPECT_EQ(value('b'), 'b');
  content[content.find(key('b'))] = ' ';  // in the line before its rows
  write_atomically(file(), content);
  EXPECT_FALSE(value('b'));
  EXPECT_EQ(value('c'), 'c');
}

TEST_F(JournalFile, UnitsOfOtherCodeStayUntilAllAreForgotten) {
  store('a', 1);
  Journal other(folder_.path(), std::string(40, 'd'));
  EXPECT_FALSE(other.find(key('a'), axes_));
  other.store(key('a'), axes_, unit(2));
  EXPECT_EQ(value('a'), 1.0);
  other.forget();
  EXPECT_FALSE(value('a'));
  EXPECT_FALSE(fs::exists(folder_ / "units"));
  other.store(key('a'), axes_, unit(3));
  EXPECT_EQ(other.find(key('a'), axes_)->rows.at(0).value, 3.0);
}

}  // namespace
}  // namespace kv
