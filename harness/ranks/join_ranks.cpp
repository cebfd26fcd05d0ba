#include "harness/ranks/join_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "harness/ranks/mpi_ranks.h"
#include "kernels/error.h"

namespace kv {
namespace {

class LoneCounts final : public SharedCounts {
 public:
  explicit LoneCounts(int number) : counts_(static_cast<size_t>(number)) {}
  int64_t add(int count, int64_t amount) override {
    return std::exchange(counts_[static_cast<size_t>(count)], counts_[static_cast<size_t>(count)] + amount);
  }

 private:
  std::vector<int64_t> counts_;
};

class LoneRank final : public Ranks {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int number_of(int rank) const override { return rank; }
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  std::unique_ptr<SharedCounts> counts(int number) override { return std::make_unique<LoneCounts>(number); }
  void add_up(std::span<double>) override {}
  std::vector<int> silent() override { return {}; }
  void bear_silence(bool) override {}
  void leave_out(const std::vector<int>&) override {}
  [[noreturn]] void end_all(int exit_code) override { std::exit(exit_code); }
};

// What launchers tell the processes that they start: Open MPI; MPICH, Intel MPI and srun; PMIx.
bool was_launched() {
  constexpr std::array kVariables = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
  return std::any_of(kVariables.begin(), kVariables.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

// Where srun has no MPI to tell them of each other, its tasks would all be the only one.
void refuse_strangers() {
  const char* const tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (!tasks || std::atoi(tasks) <= 1) return;
  throw UserError(fmt::format(
      "srun started {} tasks that know nothing of each other; expected an MPI (srun --mpi=pmix, or --mpi=pmi2), or one "
      "task",
      tasks));
}

}  // namespace

std::unique_ptr<Ranks> lone_rank() { return std::make_unique<LoneRank>(); }

std::unique_ptr<Ranks> join_ranks() {
  if (!was_launched()) {
    refuse_strangers();
    return lone_rank();
  }
  if (std::unique_ptr<Ranks> ranks = join_mpi_ranks()) return ranks;
  throw UserError("kvlab was built without MPI (-DKVLAB_MPI=ON needs it): start it without mpirun or srun");
}

}  // namespace kv
