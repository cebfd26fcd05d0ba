#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "harness/ranks/mpi_ranks.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/kvlab_process.h"
#include "tests/support/text_model.h"

namespace kv::test {

// What processes that mpirun starts leave behind, of a run of 30 units on a tiny model; skipped where MPI is not here.
class LaunchedRanks : public testing::Test {
 protected:
  using Words = std::vector<std::string>;

  void SetUp() override {
    if (!is_built_with_mpi()) GTEST_SKIP() << "built without MPI";
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun in the PATH";
    ref::make_text_model(path("model"));
    write_file(path("spec.yaml"),
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
    ::setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1);  // a second in which those that must end could linger
    // Of one machine: to look for networks takes most of a start.
    ::setenv("OMPI_MCA_pml", "ob1", 1);
    ::setenv("OMPI_MCA_btl", "self,vader", 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    // A rank that is a case of this program is no shard of it.
    for (const char* name : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"}) ::unsetenv(name);
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
    for (auto now = begin; now - begin < std::chrono::seconds(20) && now - last_lived < std::chrono::seconds(2);
         now = std::chrono::steady_clock::now()) {
      if (const std::optional<int> code = code_within(launcher, std::chrono::seconds(0))) return *code;
      const std::vector<pid_t> children = children_of(launcher);
      if (!std::all_of(children.begin(), children.end(), has_ended)) last_lived = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
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
    RowTable table = read_rows(std::filesystem::path(out) / "rows.csv");
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

  TempFolder folder_;
};

}  // namespace kv::test
