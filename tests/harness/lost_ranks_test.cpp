// Of several processes that mpirun starts one is lost in the middle of a run, and the launcher lets the others live.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "harness/files.h"
#include "harness/ranks/join_ranks.h"
#include "harness/ranks/own_share.h"
#include "harness/run.h"
#include "harness/spec/spec_reader.h"
#include "tests/support/launched_ranks.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A process of this program that LostRanksSlow starts: takes part in the run of $KV_SPEC into $KV_OUT; the ranks of
// $KV_LOST, one digit each, as soon as they have finished a case, fail ($KV_HOW "fails"), die, or stand still for three
// seconds in the middle of a unit that takes as long again.
TEST(OneOfTheRanks, IsLost) {
  const char* const lost = std::getenv("KV_LOST");
  if (!lost) GTEST_SKIP() << "part of LostRanksSlow";
  const std::string how = std::getenv("KV_HOW");
  const std::unique_ptr<Ranks> ranks = join_ranks();
  take_own_share(*ranks);
  const bool is_lost = std::string(lost).find(std::to_string(ranks->rank())) != std::string::npos;
  RunOptions options{.out = std::getenv("KV_OUT"), .verbosity = Verbosity::kQuiet, .ranks = ranks.get()};
  options.after_case = [&, is_first_case = true]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // so that all get some
    if (!is_lost || !std::exchange(is_first_case, false)) return;
    if (how == "fails") throw std::runtime_error("its GPU has fallen off the bus");
    if (how == "dies") std::raise(SIGKILL);
    std::system(fmt::format("(sleep 3; kill -CONT {}) &", ::getpid()).c_str());
    std::raise(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(3));
  };
  const std::vector<std::string> overrides = {"batch=1"};
  run_experiment(load_spec(std::getenv("KV_SPEC"), overrides), options);
}

class LostRanksSlow : public test::LaunchedRanks {
 protected:
  void SetUp() override {
    LaunchedRanks::SetUp();
    ::setenv(kRecovery, "1", 1);
    ::setenv(kPatience, "1", 1);
  }
  void TearDown() override {
    ::unsetenv(kRecovery);
    ::unsetenv(kPatience);
  }
  // Open MPI's code says nothing here: with recovery it is 0 however ranks end.
  void lose(const std::string& lost, const std::string& how, const std::string& out, int ranks = 3) const {
    const std::string self = fs::read_symlink("/proc/self/exe").string();
    code_of(start(ranks,
                  fmt::format("KV_LOST={} KV_HOW={} KV_SPEC='{}' KV_OUT='{}' exec '{}' "
                              "--gtest_filter=OneOfTheRanks.IsLost",
                              lost, how, path("spec.yaml"), out, self),
                  path("messages")));
  }
  // The ranks of a manifest that were lost.
  static std::vector<int> lost_in(const std::string& out) {
    const json ranks = json::parse(read_file(out + "/manifest.json")).at("ranks");
    std::vector<int> lost;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_NE(ranks[rank].contains("lost"), ranks[rank].contains("busy_seconds"));
      if (ranks[rank].contains("lost")) lost.push_back(static_cast<int>(rank));
    }
    return lost;
  }
  static constexpr const char* kRecovery = "OMPI_MCA_orte_enable_recovery";
  static constexpr const char* kPatience = "KVLAB_RANK_PATIENCE";
};

TEST_F(LostRanksSlow, EndTheirUnitAndNotTheSweep) {
  const std::string expected = rows_of_one();
  const std::vector<std::pair<std::string, std::string>> ways = {
      {"fails", "kvlab: rank 1: its GPU has fallen off the bus; the others do what it had begun"},
      {"dies", "kvlab: rank 1 is gone; the others do what it had begun"}};
  for (const auto& [how, said] : ways) {
    SCOPED_TRACE(how);
    lose("1", how, path(how));
    EXPECT_EQ(messages(), Words{said});
    EXPECT_EQ(rows_in(path(how)), expected);
    EXPECT_EQ(lost_in(path(how)), std::vector<int>{1});
  }
}

TEST_F(LostRanksSlow, MayDieTogether) {
  const std::string expected = rows_of_one(), out = path("together");
  lose("13", "dies", out, 4);
  EXPECT_EQ(messages(), (Words{"kvlab: rank 1 is gone; the others do what it had begun",
                               "kvlab: rank 3 is gone; the others do what it had begun"}));
  EXPECT_EQ(rows_in(out), expected);
  EXPECT_EQ(lost_in(out), (std::vector<int>{1, 3}));
}

// One that is thought to be gone, and comes back, ends nobody but itself.
TEST_F(LostRanksSlow, WhatStandsStillForLongIsLost) {
  const std::string expected = rows_of_one(), out = path("stands");
  lose("2", "stands", out);
  EXPECT_EQ(messages(), (Words{"kvlab: rank 2 is gone; the others do what it had begun",
                               "kvlab: the others go on without this rank, which gave no sign of life"}));
  EXPECT_EQ(rows_in(out), expected);
  EXPECT_EQ(lost_in(out), std::vector<int>{2});
}

// Its memory has the counts of what was taken.
TEST_F(LostRanksSlow, WithoutTheFirstOneAllEnd) {
  const std::string expected = rows_of_one(), out = path("first");
  lose("0", "dies", out);
  ASSERT_FALSE(messages().empty());
  EXPECT_EQ(messages().front(), "kvlab: rank 0 has given no sign of life for 1 s, so all end; what is finished stays");
  EXPECT_FALSE(fs::exists(out + "/rows.csv"));
  ASSERT_EQ(finish(2, out), 0);
  EXPECT_EQ(rows_in(out), expected);
}

// Every step needs all: nobody goes on with the texts of one that is gone.
TEST_F(LostRanksSlow, ATrainingEnds) {
  test::write_file(path("train.yaml"),
                   "model: " + path("model") +
                       "\nprotocol: train\ndata: [{name: noise, task: reason, tokens: 96}]\nsamples: 5\nseed: 5\n"
                       "policies: [{policy: full, admission: {wg-kv: {window: 8, weights: mine}}}]\nlearn: {steps: "
                       "1000000, batch: 4}\n");
  const std::string train =
      fmt::format("exec '{0}' train --quiet --no-draw --checkpoint 0 --weights '{1}' --out '{1}' '{2}'",
                  ref::binary_path(), path("gates"), path("train.yaml"));
  const std::string dying = fmt::format(
      "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then (until ls {}/checkpoints/* > /dev/null 2>&1; do sleep 0.05; done; "
      "kill -9 $$) & fi; {}",
      path("gates"), train);
  code_of(start(2, dying, path("messages")));
  ASSERT_FALSE(messages().empty());
  EXPECT_EQ(messages().front(), "kvlab: rank 1 has given no sign of life for 1 s, so all end; what is finished stays");
}

TEST_F(LostRanksSlow, PatienceIsANumberOfSeconds) {
  for (const char* text : {"", "soon", "0", "-1", "nan", "1e9", "5 s"}) {
    ::setenv(kPatience, text, 1);
    finish(2, path("out"));
    EXPECT_EQ(messages(), Words{"kvlab: KVLAB_RANK_PATIENCE: expected seconds from 1 to 86400"}) << text;
  }
}

}  // namespace
}  // namespace kv
