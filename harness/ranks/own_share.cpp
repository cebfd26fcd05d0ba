#include "harness/ranks/own_share.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "harness/host_name.h"
#include "harness/ranks/agreement.h"
#include "kernels/cpu/parallel.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr char kBetween = '\n';  // in no host's name, mask or list

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

}  // namespace

OwnShare own_share(const std::vector<Seat>& seats, int rank) {
  const Seat& mine = seats[static_cast<size_t>(rank)];
  OwnShare share{.ranks = 0};
  for (size_t r = 0; r < seats.size(); ++r) {
    const Seat& seat = seats[r];
    if (seat.host != mine.host) continue;
    if (seat.cores == mine.cores) ++share.ranks;
    if (seat.gpus == mine.gpus && r < static_cast<size_t>(rank)) ++share.gpu;
  }
  return share;
}

std::string visible_gpu(const std::string& gpus, int place) {
  if (gpus.empty()) return std::to_string(place);
  size_t first = 0;
  for (int i = 0; i < place; ++i) {
    const size_t comma = gpus.find(',', first);
    if (comma == gpus.npos)
      throw UserError(fmt::format("{} = {}: no GPU for rank {} of this machine", kVisible, gpus, place));
    first = comma + 1;
  }
  return gpus.substr(first, gpus.find(',', first) - first);
}

void take_own_share(Ranks& ranks) {
  if (!ranks.are_several()) return;
  const char* const visible = std::getenv(kVisible);
  const std::string gpus = visible ? visible : "";
  std::vector<Seat> seats;
  for (const std::string& text : ranks.gather(host_name() + kBetween + own_cores() + kBetween + gpus)) {
    seats.push_back(parse_seat(text));
  }
  const OwnShare share = own_share(seats, ranks.rank());
  if (!std::getenv("OMP_NUM_THREADS")) cpu::set_thread_count(std::max(1, cpu::thread_count() / share.ranks));
  agree(ranks, [&] { ::setenv(kVisible, visible_gpu(gpus, share.gpu).c_str(), 1); });
}

}  // namespace kv
