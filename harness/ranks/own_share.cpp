#include "harness/ranks/own_share.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "harness/host_name.h"
#include "harness/notice.h"
#include "harness/ranks/agreement.h"
#include "kernels/cpu/parallel.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr char kBetween = '\n';  // in no host's name, mask or list
const std::string kAllGpus = "all";

std::string own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof(set), &set);
  std::string mask;
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) mask += fmt::format("{},", core);
  }
  return mask;
}

Seat parse_seat(const std::string& text) {
  const size_t first = text.find(kBetween), second = text.find(kBetween, first + 1);
  return {text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
}

// Open MPI by itself binds each of two ranks to one core, and of more each to a socket, unless it is told otherwise.
// What Slurm binds to is what was asked of it.
void note_idle_cores(int ranks_of_machine) {
  if (!std::getenv("OMPI_COMM_WORLD_RANK") || std::getenv("SLURM_JOB_ID")) return;
  const auto share = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)) / ranks_of_machine;
  if (2 * cpu::thread_count() > share) return;
  notice(
      fmt::format("kvlab: each rank has {} of the machine's cores, its share would be {}; mpirun --bind-to none leaves "
                  "them all",
                  cpu::thread_count(), share));
}

}  // namespace

OwnShare own_share(const std::vector<Seat>& seats, int rank) {
  const Seat& mine = seats[static_cast<size_t>(rank)];
  OwnShare share{.ranks = 0, .ranks_of_machine = 0};
  for (size_t r = 0; r < seats.size(); ++r) {
    const Seat& seat = seats[r];
    if (seat.host != mine.host) continue;
    ++share.ranks_of_machine;
    if (seat.cores == mine.cores) ++share.ranks;
    if (seat.gpus == mine.gpus && r < static_cast<size_t>(rank)) ++share.gpu;
  }
  return share;
}

std::string visible_gpu(const std::string& gpus, int place) {
  if (gpus == kAllGpus) return std::to_string(place);
  const auto commas = static_cast<int>(std::count(gpus.begin(), gpus.end(), ','));
  size_t first = 0;
  for (int i = place % (commas + 1); i > 0; --i) first = gpus.find(',', first) + 1;
  return gpus.substr(first, gpus.find(',', first) - first);
}

void require_own_devices(Ranks& ranks, const std::string& device) {
  if (!ranks.are_several()) return;
  agree(ranks, [&, devices = ranks.gather(device)] {
    for (size_t b = 0; b < devices.size(); ++b) {
      const size_t a = static_cast<size_t>(std::find(devices.begin(), devices.end(), devices[b]) - devices.begin());
      if (devices[b].empty() || a == b) continue;
      throw UserError(
          fmt::format("ranks {} and {} have the same GPU: expected as many GPUs as ranks on every machine", a, b));
    }
  });
}

void take_own_share(Ranks& ranks) {
  const bool was_told = std::getenv("OMP_NUM_THREADS") != nullptr;
  if (!ranks.are_several()) {
    if (!was_told) note_idle_cores(1);
    return;
  }
  const char* const visible = std::getenv(kVisible);
  const std::string gpus = visible ? visible : kAllGpus;
  std::vector<Seat> seats;
  for (const std::string& text : ranks.gather(host_name() + kBetween + own_cores() + kBetween + gpus)) {
    seats.push_back(parse_seat(text));
  }
  const OwnShare share = own_share(seats, ranks.rank());
  ::setenv(kVisible, visible_gpu(gpus, share.gpu).c_str(), 1);
  if (was_told) return;
  cpu::set_thread_count(std::max(1, cpu::thread_count() / share.ranks));
  // Where the launcher bound nobody, whoever started it has said how many cores there are.
  if (ranks.is_first() && share.ranks < share.ranks_of_machine) note_idle_cores(share.ranks_of_machine);
}

}  // namespace kv
