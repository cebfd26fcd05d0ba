#include "harness/ranks/agreement.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/failure.h"
#include "harness/files.h"
#include "harness/notice.h"
#include "harness/ranks/join_ranks.h"
#include "kernels/error.h"

namespace kv {

namespace {

namespace fs = std::filesystem;

// What went wrong on a rank, as all hear of it: an exit code of one digit, then the message. Empty where nothing has.
std::string told(int exit_code, const std::string& message) { return std::to_string(exit_code) + message; }

// A launcher ends all ranks once one has ended, so none does before the first has said why.
[[noreturn]] void end_by(Ranks& ranks, int exit_code, const std::string& message) {
  if (ranks.is_first()) notice("kvlab: " + message);
  ranks.gather("");
  throw SaidElsewhere(exit_code);
}

std::string what_goes_wrong(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const SaidElsewhere&) {  // by all, of what they agreed on in it
    throw;
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    return told(failure.exit_code, failure.message);
  }
}

}  // namespace

void agree(Ranks& ranks, const std::function<void()>& work) {
  if (!ranks.are_several()) return work();
  const std::vector<std::string> all = ranks.gather(what_goes_wrong(work));
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& one) { return !one.empty(); });
  if (first == all.end()) return;
  const int exit_code = first->front() - '0';
  const std::string message = first->substr(1);
  const bool by_all = std::all_of(all.begin(), all.end(), [&](const std::string& one) { return one == *first; });
  end_by(
      ranks, exit_code,
      by_all ? message : fmt::format("rank {}: {}", ranks.number_of(static_cast<int>(first - all.begin())), message));
}

void end_all_where_it_fails(Ranks& ranks, const std::function<void()>& work) {
  try {
    work();
  } catch (const SaidElsewhere&) {
    throw;
  } catch (const std::exception& error) {
    if (!ranks.are_several()) throw;
    const Failure failure = failure_of(error);
    notice(fmt::format("kvlab: rank {}: {}", ranks.number_of(ranks.rank()), failure.message));
    ranks.end_all(failure.exit_code);
  }
}

void require_alone(const std::string& command) {
  std::unique_ptr<Ranks> ranks;
  try {
    ranks = join_ranks();
  } catch (const UserError&) {
    return;  // built without MPI, by which alone one knows of others
  }
  agree(*ranks, [&] {
    if (ranks->are_several()) throw UserError(fmt::format("{}: runs by itself; start it without a launcher", command));
  });
}

void require_same(Ranks& ranks, const std::string& what, const std::string& mine) {
  const std::vector<std::string> all = ranks.gather(mine);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& one) { return one != all.front(); });
  if (other == all.end()) return;
  end_by(ranks, 2,
         fmt::format("{} differ: rank 0 has {}, rank {} has {}", what, all.front(), other - all.begin(), *other));
}

void require_shared(Ranks& ranks, const std::filesystem::path& folder) {
  if (!ranks.are_several()) return;
  const fs::path mark = folder / ".seen-by-all-ranks";
  agree(ranks, [&] {
    if (ranks.is_first()) write_atomically(mark, "");
  });
  std::error_code error;
  const std::vector<std::string> seen = ranks.gather(fs::exists(mark, error) ? "yes" : "");
  if (ranks.is_first()) fs::remove(mark, error);
  agree(ranks, [&] {
    if (!seen[static_cast<size_t>(ranks.rank())].empty()) return;
    throw UserError(fmt::format(
        "'{}' is not the folder of that name that rank 0 writes to: all ranks need a shared one", folder.string()));
  });
}

}  // namespace kv
