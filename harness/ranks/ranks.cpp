#include "harness/ranks/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "harness/files.h"
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
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  std::unique_ptr<SharedCounts> counts(int number) override { return std::make_unique<LoneCounts>(number); }
  [[noreturn]] void end_all(int exit_code) override { std::exit(exit_code); }
};

// What launchers tell the processes that they start: Open MPI; MPICH, Intel MPI and srun; PMIx.
bool was_launched() {
  constexpr std::array kVariables = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
  return std::any_of(kVariables.begin(), kVariables.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

std::unique_ptr<Ranks> lone_rank() { return std::make_unique<LoneRank>(); }

std::unique_ptr<Ranks> join_ranks() {
  if (!was_launched()) return lone_rank();
  if (std::unique_ptr<Ranks> ranks = join_mpi_ranks()) return ranks;
  throw UserError("kvlab was built without MPI (-DKVLAB_MPI=ON needs it): start it without mpirun or srun");
}

void agree(Ranks& ranks, const std::function<void()>& work) {
  std::string mistake;
  try {
    work();
  } catch (const UserError& error) {
    mistake = error.what();
  }
  const std::vector<std::string> mistakes = ranks.gather(mistake);
  const auto first =
      std::find_if(mistakes.begin(), mistakes.end(), [](const std::string& one) { return !one.empty(); });
  if (first == mistakes.end()) return;
  if (!ranks.is_first()) throw SaidElsewhere();
  const bool by_all =
      std::all_of(mistakes.begin(), mistakes.end(), [&](const std::string& one) { return one == *first; });
  throw UserError(by_all ? *first : fmt::format("rank {}: {}", first - mistakes.begin(), *first));
}

void require_same(Ranks& ranks, const std::string& what, const std::string& mine) {
  const std::vector<std::string> all = ranks.gather(mine);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& one) { return one != all.front(); });
  if (other == all.end()) return;
  if (!ranks.is_first()) throw SaidElsewhere();
  throw UserError(
      fmt::format("{} differ: rank 0 has {}, rank {} has {}", what, all.front(), other - all.begin(), *other));
}

void require_shared(Ranks& ranks, const std::filesystem::path& folder) {
  if (!ranks.are_several()) return;
  const std::filesystem::path mark = folder / ".seen-by-all-ranks";
  agree(ranks, [&] {
    if (ranks.is_first()) write_atomically(mark, "");
  });
  std::error_code error;
  agree(ranks, [&] {
    if (std::filesystem::exists(mark, error)) return;
    throw UserError(fmt::format(
        "'{}' is not the folder of that name that rank 0 writes to: all ranks need a shared one", folder.string()));
  });
  if (ranks.is_first()) std::filesystem::remove(mark, error);
}

}  // namespace kv
