// Several processes that mpirun starts share one run: what they leave is what one leaves, whoever is killed meanwhile.

#include "harness/ranks/agreement.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "harness/build_info.h"
#include "harness/files.h"
#include "harness/ranks/estimated_cost.h"
#include "harness/ranks/join_ranks.h"
#include "harness/ranks/own_share.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/tasks/random.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/kvlab_process.h"
#include "tests/support/text_model.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
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

TEST(LargestFirst, KeepsToOneModelAndTakesItsLongTextsBeforeItsManyShortOnes) {
  const auto workload = [](int model, int tokens, int samples) {
    Workload of{.cases = std::vector<Case>(2)};
    of.model = model;
    of.tokens = tokens;
    of.samples = samples;
    return of;
  };
  const std::vector<Workload> grid = {workload(0, 1024, 4), workload(1, 65536, 4), workload(0, 16384, 4),
                                      workload(0, 1024, 16)};
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
  std::vector<std::string> gather(const std::string& text) override {
    std::vector<std::string> all = {text};
    for (const std::string& other : others_) all.push_back(text.empty() ? "" : other);
    return all;
  }
  std::unique_ptr<SharedCounts> counts(int) override { return nullptr; }
  void add_up(std::span<double>) override {}
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

TEST(JoinRanks, RefusesTasksThatKnowNothingOfEachOther) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (std::getenv(name)) GTEST_SKIP() << "a launcher started this";
  }
  ::setenv("SLURM_STEP_NUM_TASKS", "4", 1);
  EXPECT_THROW(join_ranks(), UserError);
  ::setenv("SLURM_STEP_NUM_TASKS", "1", 1);
  EXPECT_EQ(join_ranks()->size(), 1);
  ::unsetenv("SLURM_STEP_NUM_TASKS");
}

class RanksSlow : public testing::Test {
 protected:
  void SetUp() override {
    if (!KVLAB_MPI) GTEST_SKIP() << "built without MPI";
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun in the PATH";
    ref::make_text_model(path("model"));
    test::write_file(path("spec.yaml"),
                     "model: " + path("model") +
                         "\ndata: [{name: noise, task: reason, tokens: 96}]\npolicies: [full, streaming, h2o]\n"
                         "axes: {budget: [16, 24], interval: 8}\nmetrics: [loss]\nsamples: 5\nseed: 5\n");
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // As any user, and with more ranks than cores.
  static pid_t start(int ranks, const std::string& command, const std::string& messages) {
    const std::string count = std::to_string(ranks);
    const pid_t child = ::fork();
    if (child != 0) return child;
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) ::setenv(name, "1", 1);
    ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    ::setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::dup2(::open(messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    ::execlp("mpirun", "mpirun", "-n", count.c_str(), "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }

  std::string run(const std::string& out) const {
    return fmt::format("exec '{}' run --quiet --no-draw --out '{}' '{}'", ref::binary_path(), out, path("spec.yaml"));
  }

  static std::vector<pid_t> children_of(pid_t parent) {
    std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", parent));
    std::vector<pid_t> children;
    for (pid_t child = 0; file >> child;) children.push_back(child);
    return children;
  }

  // Whether it has ended by then; its code, −1 where a signal ended it.
  static std::optional<int> code_within(pid_t child, std::chrono::seconds patience) {
    int status = 0;
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static void end_with_children(pid_t launcher) {
    const std::vector<pid_t> children = children_of(launcher);
    ::kill(launcher, SIGKILL);
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }

  // Though its parent has not asked how.
  static bool has_ended(pid_t child) {
    std::ifstream file(fmt::format("/proc/{}/stat", child));
    std::string line;
    std::getline(file, line);
    return line.empty() || line.substr(line.rfind(')') + 2, 1) == "Z";
  }

  static int code_of(pid_t child) {
    if (const std::optional<int> code = code_within(child, std::chrono::minutes(2))) return *code;
    ADD_FAILURE() << "process " << child << " hangs";
    end_with_children(child);
    return code_within(child, std::chrono::minutes(1)).value_or(-1);
  }

  // Of a launcher one of whose ranks was killed. Open MPI 4.1's does not notice one that dies within milliseconds of
  // its start, and waits for ever once all have gone: who started it then ends it.
  static int code_after_kill(pid_t launcher) {
    const auto begin = std::chrono::steady_clock::now();
    auto last_lived = begin;
    for (auto now = begin; now - begin < 20s && now - last_lived < 2s; now = std::chrono::steady_clock::now()) {
      if (const std::optional<int> code = code_within(launcher, 0s)) return *code;
      const std::vector<pid_t> children = children_of(launcher);
      if (!std::all_of(children.begin(), children.end(), has_ended)) last_lived = now;
      std::this_thread::sleep_for(2ms);
    }
    for (const pid_t child : children_of(launcher))
      EXPECT_TRUE(has_ended(child)) << "a rank waits for one that is gone";
    end_with_children(launcher);
    return code_within(launcher, std::chrono::minutes(1)).value_or(-1);
  }

  int finish(int ranks, const std::string& out) const { return code_of(start(ranks, run(out), path("messages"))); }

  // What kvlab says, without what mpirun adds.
  Words messages() const {
    Words lines;
    std::ifstream file(path("messages"));
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("kvlab: ")) lines.push_back(line);
    }
    return lines;
  }

  static std::string rows_in(const std::string& out) {
    RowTable table = read_rows(fs::path(out) / "rows.csv");
    std::erase_if(table.rows, [](const Row& row) { return is_timing(row.metric); });
    for (const Row& row : table.rows) EXPECT_FALSE(row.metric.empty()) << row.skipped;
    return format_rows(table.axes, table.rows);
  }

  std::string rows_of_one() const {
    const std::string out = path("one");
    const pid_t child = ref::start_kvlab({"run", "--quiet", "--no-draw", "--out", out, path("spec.yaml")});
    EXPECT_EQ(code_of(child), 0);
    return rows_in(out);
  }

  test::TempFolder folder_;
};

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

class TrainingRanksSlow : public RanksSlow {
 protected:
  void write_spec(const std::string& learning) const {
    test::write_file(path("train.yaml"), "model: " + path("model") +
                                             "\nprotocol: train\ndata: [{name: noise, task: reason, tokens: 96}]\n"
                                             "samples: 5\nseed: 5\ntables: []\n" +
                                             learning);
  }
  // What the second stage of ForesightKV goes on from.
  void train_base() const {
    write_spec(
        "policies: [{policy: foresight-kv, weights: base}]\nlearn: {steps: 2, batch: 2, budget: 40, interval: 8, "
        "warm_up: 1}\n");
    const pid_t child = ref::start_kvlab({"train", "--quiet", "--no-draw", "--out", path("base"), path("train.yaml")});
    ASSERT_EQ(code_of(child), 0);
  }
  std::string train(const std::string& out) const {
    return fmt::format("exec '{0}' train --quiet --no-draw --checkpoint 0 --weights '{1}' --out '{1}' '{2}'",
                       ref::binary_path(), out, path("train.yaml"));
  }
  // Of all that was learned.
  static std::vector<float> parameters_in(const std::string& out) {
    std::vector<float> parameters;
    for (const fs::directory_entry& entry : fs::directory_iterator(out)) {
      if (entry.path().extension() != ".safetensors") continue;
      const SafetensorsFile file = SafetensorsFile::open(entry.path());
      for (const TensorInfo& tensor : file.tensors()) {
        const std::vector<float> values = file.read_f32(tensor);
        parameters.insert(parameters.end(), values.begin(), values.end());
      }
    }
    return parameters;
  }
};

constexpr const char* kGates =
    "policies: [{policy: full, admission: {wg-kv: {window: 8, weights: mine}}}]\nlearn: {steps: 6, batch: 4}\n";

// Of a method each: what is in a step's parts alone, and what asks for a sum in between.
class RanksOfAMethodSlow : public TrainingRanksSlow, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    TrainingRanksSlow::SetUp();
    if (IsSkipped()) return;
    const std::string learning = GetParam();
    if (learning.find("start: base") != learning.npos) train_base();
    write_spec(learning);
  }
};

// Within what rounding makes of a few of Adam's steps.
TEST_P(RanksOfAMethodSlow, LearnWhatOneProcessLearns) {
  const std::string one = path("alone");
  ASSERT_EQ(code_of(start(1, train(one), path("messages"))), 0);
  const std::vector<float> expected = parameters_in(one);
  ASSERT_FALSE(expected.empty());
  const RowTable rows = read_rows(fs::path(one) / "rows.csv");
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    const std::string out = path(fmt::format("by{}", ranks));
    ASSERT_EQ(code_of(start(ranks, train(out), path("messages"))), 0);
    const std::vector<float> parameters = parameters_in(out);
    ASSERT_EQ(parameters.size(), expected.size());
    double difference = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference = std::max(difference, std::abs(double{parameters[i]} - expected[i]));
      size = std::max(size, std::abs(double{expected[i]}));
    }
    EXPECT_LE(difference, 1e-4 * size);
    const RowTable measured = read_rows(fs::path(out) / "rows.csv");
    ASSERT_EQ(measured.rows.size(), rows.rows.size());
    for (size_t i = 0; i < rows.rows.size(); ++i) {
      EXPECT_EQ(measured.rows[i].metric, rows.rows[i].metric);
      const double value = rows.rows[i].value.value();
      EXPECT_NEAR(measured.rows[i].value.value(), value, 1e-4 * (1 + std::abs(value))) << rows.rows[i].metric;
    }
  }
}

// Killed as a whole or in part, and gone on with by another number of ranks.
TEST_P(RanksOfAMethodSlow, GoOnFromTheirCheckpoint) {
  const std::string one = path("alone"), out = path("killed");
  using Clock = std::chrono::steady_clock;
  ASSERT_EQ(code_of(start(1, train(one), path("messages"))), 0);
  const auto begin = Clock::now();
  ASSERT_EQ(code_of(start(4, train(path("whole")), path("messages"))), 0);
  const auto duration = Clock::now() - begin;
  Random random(19, 0);
  int killed = 0;
  const auto checkpoint = [&] {
    auto newest = fs::file_time_type::min();
    std::error_code error;
    for (fs::directory_iterator file(out + "/checkpoints", error), end; !error && file != end; file.increment(error)) {
      if (file->path().extension() == ".safetensors") newest = std::max(newest, file->last_write_time(error));
    }
    return newest;
  };
  const auto has_begun = [&] { return checkpoint() != fs::file_time_type::min(); };
  for (int i = 0; (killed < 3 || !has_begun()) && i < 40; ++i) {
    const auto before = checkpoint();
    const auto started = Clock::now();
    const pid_t launcher = start(1 << random.below(3), train(out), path("messages"));
    // At any moment, but most of the time of so short a training is the launcher's: as a rule after a checkpoint.
    auto moment = duration * random.uniform();
    if (random.below(3) > 0) {
      while (checkpoint() == before && !has_ended(launcher) && Clock::now() - started < 2 * duration) {
        std::this_thread::sleep_for(1ms);
      }
      moment /= 100;
    }
    std::this_thread::sleep_for(std::chrono::duration_cast<Clock::duration>(moment));
    const std::vector<pid_t> children = children_of(launcher);
    if (!children.empty()) ::kill(children[random.below(children.size())], SIGKILL);
    if (code_after_kill(launcher) == 0) {  // done before its time: nothing is left to go on with
      fs::remove_all(out);
      continue;
    }
    ++killed;
  }
  ASSERT_GE(killed, 3);
  ASSERT_TRUE(has_begun());
  std::string last = train(out);
  last.erase(last.find(" --quiet"), std::string(" --quiet").size());
  ASSERT_EQ(code_of(start(2, last, path("messages"))), 0);
  const std::string said = read_file(path("messages"));
  EXPECT_NE(said.find(" from an earlier start)"), std::string::npos) << said;
  EXPECT_EQ(said.find("(0 from an earlier start)"), std::string::npos) << said;
  const std::vector<float> expected = parameters_in(one), parameters = parameters_in(out);
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(parameters[i], expected[i], 1e-4 * (1 + std::abs(expected[i]))) << i;
  }
}

// Each would add up gradients of its own model or texts.
TEST_F(TrainingRanksSlow, NeedTheSameInputs) {
  write_spec(kGates);
  for (const char* rank : {"rank0", "rank1"}) {
    fs::create_directories(path(rank));
    fs::copy(path("model"), path(rank) + "/own", fs::copy_options::recursive);
  }
  test::write_file(path("rank1/own/config.json"), read_file(path("rank0/own/config.json")) + "\n");
  const std::string command = fmt::format("cd {}/rank$OMPI_COMM_WORLD_RANK && {} --set model=own",
                                          folder_.path().string(), train(path("apart")));
  EXPECT_EQ(code_of(start(2, command, path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u) << testing::PrintToString(messages());
  EXPECT_NE(messages()[0].find("inputs of the training differ"), std::string::npos) << messages()[0];
}

TEST_F(TrainingRanksSlow, NeedATextEach) {
  write_spec(kGates);
  EXPECT_EQ(code_of(start(2, train(path("few")) + " --set learn.batch=1", path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u) << testing::PrintToString(messages());
  EXPECT_NE(messages()[0].find("the 1 texts of a step are divided over 2 ranks"), std::string::npos) << messages()[0];
}

constexpr const char* kLearning[] = {
    kGates, "policies: [{policy: retention, hidden: 8, weights: mine}]\nlearn: {steps: 6, batch: 4, entries: 8}\n",
    "policies: [{policy: full, admission: {duo: {sinks: 2, window: 8, weights: mine}}}]\nlearn: {steps: 6, batch: 4}\n",
    "policies: [foresight-kv]\nlearn: {steps: 6, batch: 4, budget: 40, interval: 8, warm_up: 1}\n",
    "policies: [foresight-kv]\n"
    "learn: {stage: reinforced, start: base, steps: 6, batch: 4, group: 3, budget: 40, interval: 8, warm_up: 1}\n"};

std::string method_of(const testing::TestParamInfo<const char*>& spec) {
  constexpr const char* kNames[] = {"wg_kv", "retention", "duo", "foresight_kv", "foresight_kv_reinforced"};
  return kNames[spec.index];
}

INSTANTIATE_TEST_SUITE_P(Methods, RanksOfAMethodSlow, testing::ValuesIn(kLearning), method_of);

class KilledRanksSlow : public RanksSlow, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    RanksSlow::SetUp();
    if (!IsSkipped()) test::write_file(path("spec.yaml"), read_file(path("spec.yaml")) + "batch: 1\n");
  }
  std::string loud_run(const std::string& out) const {
    std::string command = run(out);
    return command.erase(command.find(" --quiet"), std::string(" --quiet").size());
  }
  static int64_t units_in(const std::string& out) {
    std::error_code error;
    int64_t units = 0;
    for (fs::recursive_directory_iterator file(out + "/units", error), end; !error && file != end;
         file.increment(error)) {
      units += file->is_regular_file(error) && file->path().filename().string().size() == 64;  // whole ones
    }
    return units;
  }
  static void wait(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }
  // "… cases (N from an earlier start)", as the run that ended last has said.
  int reused_cases() const {
    const std::string said = read_file(path("messages"));
    const size_t end = said.find(" from an earlier start)");
    if (end == said.npos) return 0;
    return std::stoi(said.substr(said.rfind('(', end) + 1));
  }
};

// One rank is killed, which the launcher lets end the others, or all of them and the launcher; the next start has
// another number of ranks. Over a hundred in eight shares.
TEST_P(KilledRanksSlow, LoseNothingOfWhatIsFinished) {
  constexpr int kKills = 13;
  const std::string expected = rows_of_one();
  using Clock = std::chrono::steady_clock;
  auto begin = Clock::now();
  ASSERT_EQ(finish(4, path("whole")), 0);
  const auto duration = Clock::now() - begin;
  Random random(19, static_cast<uint64_t>(GetParam()));
  std::string out = path("out0");
  int finished = 0, killed = 0, killed_together = 0, killed_at_work = 0, reused = 0;
  while (killed < kKills && !HasFailure()) {
    const int ranks = 1 << random.below(3);
    const int64_t before = units_in(out);
    begin = Clock::now();
    const pid_t launcher = start(ranks, loud_run(out), path("messages"));
    // At any moment, but most of the time of so short a run is the launcher's: in two of three after the next unit.
    auto moment = duration * random.uniform();
    if (random.below(3) > 0) {
      while (units_in(out) == before && !has_ended(launcher) && Clock::now() - begin < 2 * duration) wait(2ms);
      moment /= 8;
    }
    wait(std::chrono::duration_cast<std::chrono::milliseconds>(moment));
    const std::vector<pid_t> children = children_of(launcher);
    const bool all = children.empty() || random.below(2) == 0;
    if (!children.empty() && !all) ::kill(children[random.below(children.size())], SIGKILL);
    if (all) end_with_children(launcher);
    if (code_after_kill(launcher) != 0) {
      ++killed;
      killed_together += all;
      killed_at_work += units_in(out) > before;
      continue;
    }
    reused += reused_cases();
    ASSERT_EQ(rows_in(out), expected) << "after " << killed << " kills";
    fs::remove_all(out);
    out = path(fmt::format("out{}", ++finished));
  }
  for (int i = 0; i < 50 && finish(2, out) != 0; ++i) {  // a killed launcher's ranks end within moments, not at once
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(rows_in(out), expected);
  EXPECT_GT(killed_together, 0);
  EXPECT_LT(killed_together, kKills);
  EXPECT_GT(killed_at_work, kKills / 4);
  EXPECT_GT(reused, 0) << "all was lost each time";
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
  EXPECT_NE(messages()[0].find("kvlab's commits differ"), std::string::npos) << messages()[0];

  test::write_file(path("spec.yaml"), "model: nothing\n");
  EXPECT_EQ(finish(2, path("none")), 2);
  EXPECT_EQ(messages().size(), 1u);

  const std::string profile = fmt::format("exec '{}' profile '{}'", ref::binary_path(), path("spec.yaml"));
  EXPECT_EQ(code_of(start(2, profile, path("messages"))), 2);
  ASSERT_EQ(messages().size(), 1u);
  EXPECT_NE(messages()[0].find("kvlab profile: runs by itself"), std::string::npos) << messages()[0];
}

INSTANTIATE_TEST_SUITE_P(Shares, KilledRanksSlow, testing::Range(0, 8));

}  // namespace
}  // namespace kv
