// Several processes that mpirun starts share one run, of which some or all are killed.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "harness/files.h"
#include "sim/tasks/random.h"
#include "tests/support/launched_ranks.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class KilledRanksSlow : public test::LaunchedRanks, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    LaunchedRanks::SetUp();
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
  int finished = 0, killed = 0, killed_together = 0, killed_at_work = 0, reused = 0, ranks = 4;
  while (killed < kKills && !HasFailure()) {
    ranks = ranks == 4 ? 1 + random.below(2) : ranks == 2 ? (random.below(2) ? 1 : 4) : 2 << random.below(2);
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
    ASSERT_GE(reused_cases(), before) << "what had been finished was done again";
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

INSTANTIATE_TEST_SUITE_P(Shares, KilledRanksSlow, testing::Range(0, 8));

}  // namespace
}  // namespace kv
