// Several processes that mpirun starts share one run: what they leave is what one leaves, and what is not one run is
// refused.

#include "harness/ranks/agreement.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/build_info.h"
#include "harness/files.h"
#include "harness/ranks/estimated_cost.h"
#include "harness/ranks/join_ranks.h"
#include "harness/ranks/own_share.h"
#include "kernels/error.h"
#include "tests/support/launched_ranks.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using RanksSlow = test::LaunchedRanks;

using Words = std::vector<std::string>;

TEST(OwnShare, IsAGpuAndAShareOfTheCoresOfAMachine) {
  const std::vector<Seat> seats = {
      {"a", "0,1,", "all"}, {"b", "0,1,", "all"}, {"a", "0,1,", "all"}, {"a", "0,1,", "all"}};
  for (const auto& [rank, gpu] : {std::pair(0, 0), {1, 0}, {2, 1}, {3, 2}}) {
    EXPECT_EQ(own_share(seats, rank).gpu, gpu) << rank;
    EXPECT_EQ(own_share(seats, rank).ranks, rank == 1 ? 1 : 3) << rank;
  }
}

// srun --gpus-per-task=1 and cores bound: nothing is left to divide.
TEST(OwnShare, IsWhatTheLauncherGaveEach) {
  const std::vector<Seat> seats = {{"a", "0,", "0"}, {"a", "1,", "1"}};
  for (const int rank : {0, 1}) {
    EXPECT_EQ(own_share(seats, rank).gpu, 0);
    EXPECT_EQ(own_share(seats, rank).ranks, 1);
  }
}

TEST(OwnShare, NamesTheGpuOfAList) {
  EXPECT_EQ(visible_gpu("all", 3), "3");
  EXPECT_EQ(visible_gpu("", 3), "") << "none is seen";
  EXPECT_EQ(visible_gpu("5", 0), "5");
  EXPECT_EQ(visible_gpu("GPU-1,GPU-2,GPU-3", 1), "GPU-2");
  EXPECT_EQ(visible_gpu("4,5", 1), "5");
  EXPECT_EQ(visible_gpu("0", 3), "0");  // of four ranks to which the launcher shows one each
  EXPECT_EQ(visible_gpu("4,5", 2), "4");
}

// However many: what comes last is what ranks wait for in the end.
TEST(LargestFirst, KeepsToOneModelAndTakesItsLongTextsBeforeItsManyShortOnes) {
  const auto workload = [](int model, int tokens, int samples) {
    Workload of{.cases = std::vector<Case>(2)};
    of.model = model;
    of.tokens = tokens;
    of.samples = samples;
    return of;
  };
  const std::vector<Workload> grid = {workload(0, 1024, 4), workload(1, 65536, 4), workload(0, 16384, 4),
                                      workload(0, 2048, 5000)};
  EXPECT_EQ(largest_first(grid), (std::vector<size_t>{2, 3, 0, 1}));
  EXPECT_GT(estimated_cost(grid[2]), 16 * estimated_cost(grid[0])) << "attention is quadratic";
}

TEST(LoneRank, TakesPiecesInOrderAndSaysItsOwnMistakes) {
  const std::unique_ptr<Ranks> ranks = lone_rank();
  EXPECT_FALSE(ranks->are_several());
  const std::unique_ptr<SharedCounts> counts = ranks->counts(2);
  EXPECT_EQ(counts->add(1, 1), 0);
  EXPECT_EQ(counts->add(1, 3), 1);
  EXPECT_EQ(counts->add(1, 0), 4);
  EXPECT_EQ(counts->add(0, 1), 0);
  EXPECT_THROW(agree(*ranks, [] { throw UserError("mine"); }), UserError);
  EXPECT_NO_THROW(require_same(*ranks, "specs", "x"));
}

// The first of several ranks, to whom the others say what a test lets them say.
class FirstOf final : public Ranks {
 public:
  explicit FirstOf(std::vector<std::string> others) : others_(std::move(others)) {}
  int rank() const override { return 0; }
  int size() const override { return static_cast<int>(others_.size()) + 1; }
  int number_of(int rank) const override { return rank; }
  std::vector<std::string> gather(const std::string& text) override {
    std::vector<std::string> all = {text};
    for (const std::string& other : others_) all.push_back(text.empty() ? "" : other);
    return all;
  }
  std::unique_ptr<SharedCounts> counts(int) override { return nullptr; }
  void add_up(std::span<double>) override {}
  std::vector<int> silent() override { return {}; }
  void bear_silence(bool) override {}
  void leave_out(const std::vector<int>&) override {}
  [[noreturn]] void end_all(int exit_code) override { std::exit(exit_code); }

 private:
  std::vector<std::string> others_;
};

TEST(OwnDevices, AreOfOneRankEach) {
  FirstOf several({"GPU-2", "GPU-3"}), two_of_one({"GPU-2", "GPU-1"}), on_the_host({"", ""});
  EXPECT_NO_THROW(require_own_devices(several, "GPU-1"));
  EXPECT_NO_THROW(require_own_devices(on_the_host, ""));
  EXPECT_THROW(require_own_devices(two_of_one, "GPU-1"), SaidElsewhere);
}

// Another mistake than a user's must not leave the others waiting either.
TEST(Agreement, IsReachedWhateverGoesWrong) {
  FirstOf several({"", ""});
  const auto code_of = [&](const std::function<void()>& work) {
    try {
      agree(several, work);
    } catch (const SaidElsewhere& said) {
      return said.exit_code();
    }
    return 0;
  };
  EXPECT_EQ(code_of([] { throw std::bad_alloc(); }), 1);
  EXPECT_EQ(code_of([] { throw std::runtime_error("a bug"); }), 1);
  EXPECT_EQ(code_of([] { throw UserError("a mistake"); }), 2);
  EXPECT_EQ(code_of([&] { agree(several, [] { throw std::bad_alloc(); }); }), 1);
  EXPECT_NO_THROW(agree(several, [] {}));
  const std::unique_ptr<Ranks> alone = lone_rank();
  EXPECT_THROW(agree(*alone, [] { throw std::bad_alloc(); }), std::bad_alloc);
}

// Without what a launcher may have told this process, and with what Slurm tells its tasks.
class JoinRanks : public testing::Test {
 protected:
  JoinRanks() {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", kTasks}) {
      if (const char* const value = std::getenv(name)) told_[name] = value;
      ::unsetenv(name);
    }
  }
  ~JoinRanks() override {
    ::unsetenv(kTasks);
    for (const auto& [name, value] : told_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  static constexpr const char* kTasks = "SLURM_STEP_NUM_TASKS";

 private:
  std::map<std::string, std::string> told_;
};

TEST_F(JoinRanks, RefusesTasksThatKnowNothingOfEachOther) {
  ::setenv(kTasks, "4", 1);
  EXPECT_THROW(join_ranks(), UserError);
  ::setenv(kTasks, "1", 1);
  EXPECT_EQ(join_ranks()->size(), 1);
}

TEST_F(RanksSlow, MakeTheRowsOfOneProcess) {
  const std::string expected = rows_of_one();
  for (const int ranks : {1, 2, 4}) {
    const std::string out = path(fmt::format("of{}", ranks));
    ASSERT_EQ(finish(ranks, out), 0) << ranks;
    EXPECT_EQ(rows_in(out), expected) << ranks << " ranks";
  }
}

// Whatever is divided: models, kinds of text, and cases where samples are repetitions.
TEST_F(RanksSlow, ShareModelsDataAndCases) {
  fs::copy(path("model"), path("other"), fs::copy_options::recursive);
  const std::string grid = fmt::format(
      "model: [{}, {}]\nsamples: 3\nseed: 5\nbatch: 1\npolicies: [full, h2o]\n"
      "data: [{{name: short, task: reason, tokens: 64}}, {{name: long, task: reason, tokens: 96}}]\n"
      "axes: {{budget: [16, 24], interval: 8}}\nmetrics: [loss]\n",
      path("model"), path("other"));
  const std::string repeated =
      "model: {random: tiny}\nprotocol: latency\nsamples: 2\nprefill_chunk: 64\npolicies: [full]\n"
      "axes: {batch: [1, 2], context: [32, 64]}\n";
  for (const std::string& spec : {grid, repeated}) {
    SCOPED_TRACE(spec);
    test::write_file(path("spec.yaml"), spec);
    const std::string expected = rows_of_one(), out = path("of4");
    ASSERT_EQ(finish(4, out), 0);
    EXPECT_EQ(rows_in(out), expected);
    const auto manifest = nlohmann::json::parse(read_file(out + "/manifest.json"));
    ASSERT_EQ(manifest["ranks"].size(), 4u);
    for (const auto& rank : manifest["ranks"]) {
      EXPECT_EQ(rank["node"], 0);
      EXPECT_GT(rank["busy_seconds"], 0);
    }
    fs::remove_all(path("one"));
    fs::remove_all(out);
  }
}

TEST_F(RanksSlow, RefuseWhatIsNotOneRunInOneLine) {
  const std::string own_spec =
      fmt::format("exec '{}' run --quiet --no-draw --set seed=$OMPI_COMM_WORLD_RANK --out '{}' '{}'",
                  ref::binary_path(), path("specs"), path("spec.yaml"));
  EXPECT_EQ(code_of(start(2, own_spec, path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u);
  EXPECT_NE(messages()[0].find("specs differ"), std::string::npos) << messages()[0];

  const std::string own_folder =
      fmt::format("exec '{}' run --quiet --no-draw --out '{}'/apart$OMPI_COMM_WORLD_RANK '{}'", ref::binary_path(),
                  folder_.path().string(), path("spec.yaml"));
  EXPECT_EQ(code_of(start(2, own_folder, path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u);
  EXPECT_NE(messages()[0].find("rank 1: "), std::string::npos) << messages()[0];
  EXPECT_NE(messages()[0].find("all ranks need a shared one"), std::string::npos) << messages()[0];

  test::write_file(path("spec.yaml"),
                   "model: {random: tiny}\nprotocol: latency\npolicies: [full]\naxes: {batch: 1, context: 32}\n");
  const std::string own_threads =
      fmt::format("export OMP_NUM_THREADS=$((1 + OMPI_COMM_WORLD_RANK)); {}", run(path("threads")));
  EXPECT_EQ(code_of(start(2, own_threads, path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u) << testing::PrintToString(messages());
  EXPECT_NE(messages()[0].find("threads differ"), std::string::npos) << messages()[0];

  // All cards are hidden, and stay so.
  const std::string no_card = "export CUDA_VISIBLE_DEVICES=; " + run(path("cards")) + " --device cuda";
  EXPECT_EQ(code_of(start(2, no_card, path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u) << testing::PrintToString(messages());
  EXPECT_NE(messages()[0].find("cuda"), std::string::npos) << messages()[0];

  // Of another commit; or, built with changes, of another content.
  std::string binary = read_file(ref::binary_path());
  const std::string commit(build_info().commit);
  for (size_t at = binary.find(commit); at != binary.npos; at = binary.find(commit, at + 1)) binary[at] = '!';
  test::write_file(path("other"), binary);
  fs::permissions(path("other"), fs::perms::owner_all);
  const std::string own_binary =
      fmt::format("test $OMPI_COMM_WORLD_RANK = 0 || set -- '{}'; exec ${{1:-'{}'}} {}", path("other"),
                  ref::binary_path(), run(path("commits")).substr(run("").find(" run ")));
  EXPECT_EQ(code_of(start(2, own_binary, path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u) << testing::PrintToString(messages());
  EXPECT_NE(messages()[0].find("builds of kvlab differ"), std::string::npos) << messages()[0];

  test::write_file(path("spec.yaml"), "model: nothing\n");
  EXPECT_EQ(finish(2, path("none")), 2);
  EXPECT_EQ(messages().size(), 1u);

  const std::string profile = fmt::format("exec '{}' profile '{}'", ref::binary_path(), path("spec.yaml"));
  EXPECT_EQ(code_of(start(2, profile, path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u);
  EXPECT_NE(messages()[0].find("kvlab profile: runs by itself"), std::string::npos) << messages()[0];
}

}  // namespace
}  // namespace kv
