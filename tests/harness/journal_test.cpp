#include "harness/journal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
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
  fs::path file(char letter) const { return folder_ / "units" / code_.substr(0, 16) / key(letter); }
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
  const Journal journal = open();
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

TEST_F(JournalFile, AUnitThatWasTornIsNotThereAndIsStoredAgain) {
  for (const char letter : {'a', 'b'}) store(letter, letter);
  const auto whole = fs::file_size(file('b'));
  for (const auto left : {whole - 2, whole / 2, whole - whole, uintmax_t{70}}) {
    fs::resize_file(file('b'), left);
    EXPECT_EQ(value('a'), 'a') << left;
    EXPECT_FALSE(value('b')) << left;
    store('b', 3);
    EXPECT_EQ(value('b'), 3.0) << left;
  }
}

TEST_F(JournalFile, AUnitThatWasAlteredIsNotThereAndTheOthersAre) {
  for (const char letter : {'a', 'b', 'c'}) store(letter, letter);
  std::string content = read_file(file('a'));
  content[content.find(",m,") + 1] = 'n';
  write_atomically(file('a'), content);
  EXPECT_FALSE(value('a'));
  fs::copy_file(file('c'), file('b'), fs::copy_options::overwrite_existing);  // another's
  EXPECT_FALSE(value('b'));
  EXPECT_EQ(value('c'), 'c');
}

// As ranks of one run do, on one machine or on several.
TEST_F(JournalFile, SeveralProcessesFinishUnitsOfOneFolder) {
  constexpr int kProcesses = 4;
  const std::string letters = "abcdefghijklmnopqrstuvwxyz";
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(::fork());
    if (children.back() > 0) continue;
    for (const char letter : letters) store(letter, letter);  // all the same
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  for (const char letter : letters) EXPECT_EQ(value(letter), letter);
  const auto files = fs::directory_iterator(file('a').parent_path());
  EXPECT_EQ(std::distance(begin(files), end(files)), std::ssize(letters));  // and nothing unfinished
}

TEST_F(JournalFile, WhatKilledWritersLeftGoes) {
  open().tidy();  // where there is nothing yet
  store('a', 1);
  const fs::path left = file('b').string() + ".partial-host-77";
  write_atomically(left, "unit");
  open().tidy();
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(value('a'), 1);
}

TEST_F(JournalFile, UnitsOfOtherCodeStayUntilAllAreForgotten) {
  store('a', 1);
  const Journal other(folder_.path(), std::string(40, 'd'));
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
