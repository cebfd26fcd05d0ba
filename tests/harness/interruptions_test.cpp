// What befalls a run from outside: somebody interrupts it, the disk is full, its reader goes, a file that it reads
// becomes shorter. Each gives one line and the right exit code, and the run goes on when it is started again.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "tests/support/cli_fixture.h"
#include "tests/support/kvlab_process.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;
using testing::HasSubstr;
using Words = std::vector<std::string>;

struct End {
  int code = -1, signal = 0;
  std::string said;  // on stderr
};

// The writing end of a pipe that nobody reads.
class DeadPipe {
 public:
  DeadPipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ::close(ends[0]);
    end_ = ends[1];
  }
  DeadPipe(const DeadPipe&) = delete;
  DeadPipe& operator=(const DeadPipe&) = delete;
  ~DeadPipe() { ::close(end_); }
  int end() const { return end_; }

 private:
  int end_;
};

class Interruptions : public Cli {
 protected:
  using Befall = std::function<void(pid_t)>;

  // Runs kvlab to its end. As soon as a journal in `out` holds a unit, `befall` is called.
  End run_kvlab(const Words& words, const std::string& out = "", const Befall& befall = {}, int stdout_end = -1) const {
    const int messages = ::open(path("said").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const pid_t child = ref::start_kvlab(words, {.out = stdout_end, .messages = messages, .folder = folder_.string()});
    ::close(messages);
    const auto deadline = steady_clock::now() + std::chrono::minutes(1);
    bool befell = !befall;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (steady_clock::now() > deadline) ::kill(child, SIGKILL);
      if (!befell && unit_size(out) > 0) {
        befall(child);
        befell = true;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    EXPECT_TRUE(befell) << "the run ended before";
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
            .said = read_file(folder_ / "said")};
  }

  // Of any unit that is finished, 0 where none is: what is being written has another name.
  uintmax_t unit_size(const std::string& out) const {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_ / out / "units", error)) {
      if (entry.is_regular_file(error) && !entry.path().has_extension()) return entry.file_size(error);
    }
    return 0;
  }

  // Of many units, some milliseconds each.
  Words long_run(const std::string& out, const std::string& spec = "tiny.yaml") const {
    return {"run", "--no-draw", "--out", out, spec, "--set", "axes.budget=[12, 16, 20, 24, 28, 32, 36, 40]"};
  }

  // Started again, the run keeps what was finished, and its rows are those of an undisturbed one.
  void expect_it_goes_on(const std::string& out) const {
    EXPECT_GT(unit_size(out), 0u);
    const End again = run_kvlab(long_run(out));
    EXPECT_EQ(again.code, 0) << again.said;
    EXPECT_THAT(again.said, testing::Not(HasSubstr("(0 from an earlier start)")));
    ASSERT_EQ(run_kvlab(long_run("undisturbed")).code, 0);
    EXPECT_EQ(rows_of(out), rows_of("undisturbed"));
  }

  static std::string last_line(const std::string& said) {
    const size_t end = said.find_last_not_of('\n') + 1, before = said.rfind('\n', end - 1);
    return said.substr(before + 1, end - before - 1);
  }
};

TEST_F(Interruptions, AnInterruptedRunSaysThatItGoesOn) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string out = fmt::format("signal{}", signal);
    const End end = run_kvlab(long_run(out), out, [&](pid_t child) { ::kill(child, signal); });
    EXPECT_EQ(end.signal, signal);  // 128 + its number to a shell
    EXPECT_EQ(last_line(end.said),
              "kvlab: interrupted; a run keeps its finished cases, and goes on when it is started again");
    expect_it_goes_on(out);
  }
}

TEST_F(Interruptions, ADiskThatFillsUpLosesNothing) {
  const End end = run_kvlab(long_run("a"), "a", [&](pid_t child) {
    // More than there is to say, too little for another unit.
    const rlimit limit{.rlim_cur = unit_size("a") / 2, .rlim_max = RLIM_INFINITY};
    ::prlimit(child, RLIMIT_FSIZE, &limit, nullptr);
  });
  EXPECT_EQ(end.code, 2) << end.said;
  EXPECT_THAT(last_line(end.said), testing::MatchesRegex("kvlab: cannot write 'a/units/.*': File too large"));
  expect_it_goes_on("a");
}

TEST_F(Interruptions, ARunGoesOnWhereNobodyReadsItsMessages) {
  const DeadPipe nobody;
  const pid_t child = ref::start_kvlab(long_run("a"), {.messages = nobody.end(), .folder = folder_.string()});
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ASSERT_EQ(run_kvlab(long_run("undisturbed")).code, 0);
  EXPECT_EQ(rows_of("a"), rows_of("undisturbed"));
}

// As any filter does (kvlab list | head -1): no complaint, and the end by SIGPIPE, which a shell knows. All specs of a
// run come to their ends before.
TEST_F(Interruptions, OutputThatNobodyReadsEndsQuietlyAndAtTheEnd) {
  const DeadPipe nobody;
  const End list = run_kvlab({"list"}, "", {}, nobody.end());
  EXPECT_EQ(list.signal, SIGPIPE);
  EXPECT_EQ(list.said, "");
  std::string budgets;
  for (int budget = 12; budget < 44; ++budget) budgets += fmt::format("{}, ", budget);
  const std::string wide = test::replaced(test::replaced(yaml(), "16, 24", budgets + "44"), "tables: []\n", "");
  for (const char* name : {"first", "second"}) test::write_file(folder_ / fmt::format("{}.yaml", name), wide);
  const End run = run_kvlab({"run", "first.yaml", "second.yaml", "--set", "samples=1"}, "", {}, nobody.end());
  EXPECT_EQ(run.signal, SIGPIPE);
  EXPECT_THAT(last_line(run.said), testing::EndsWith("results/second/index.html"));
}

TEST_F(Interruptions, AFileThatBecomesShorterWhileItIsReadIsNamed) {
  ASSERT_EQ(run_kvlab({"record", "--model", model(), "--ids", "ids.safetensors", "--out", "t.safetensors"}).code, 0);
  test::write_file(folder_ / "trace.yaml",
                   "# Q?\ntrace: t.safetensors\npolicies: [full, streaming, h2o, random]\naxes: {budget: 16, interval: "
                   "8}\nmetrics: [recall]\nseed: 5\n");
  const End end =
      run_kvlab(long_run("a", "trace.yaml"), "a", [&](pid_t) { fs::resize_file(folder_ / "t.safetensors", 4096); });
  EXPECT_EQ(end.code, 2) << end.said;
  EXPECT_THAT(last_line(end.said),
              testing::MatchesRegex("kvlab: .*t.safetensors: cannot read: the file became shorter while it was read"));
}

}  // namespace
}  // namespace kv
