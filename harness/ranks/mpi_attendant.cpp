#include "harness/ranks/mpi_attendant.h"

#if KVLAB_MPI

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "harness/notice.h"

namespace kv {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBetweenCalls = std::chrono::milliseconds(1);
constexpr auto kBetweenSigns = std::chrono::milliseconds(250);
constexpr int kSignsOfASecond = 4;
enum Tag { kSign, kFarewell, kLeftOut };  // of messages

// The first hears of all, and all of the first.
std::vector<int> peers_of_this_process() {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank > 0) return {0};
  std::vector<int> others;
  for (int other = 1; other < size; ++other) others.push_back(other);
  return others;
}

}  // namespace

MpiAttendant::MpiAttendant(double patience)
    : patience_(patience),
      peers_(peers_of_this_process()),
      life_(peers_, static_cast<int>(patience * kSignsOfASecond)) {
  MPI_Comm_dup(MPI_COMM_WORLD, &signs_);
  MPI_Comm_set_errhandler(signs_, MPI_ERRORS_RETURN);  // who cannot be told is silent soon
  thread_ = std::thread([this] { attend(); });
}

MpiAttendant::~MpiAttendant() {
  ended_ = true;
  thread_.join();
  if (!lost_some_) MPI_Comm_free(&signs_);
}

std::vector<int> MpiAttendant::silent() {
  const std::lock_guard lock(mutex_);
  return silent_;
}

void MpiAttendant::leave_out(const std::vector<int>& silent) {
  const std::lock_guard lock(mutex_);
  for (const int process : silent) {
    if (std::erase(peers_, process) == 0) continue;  // of others the first hears
    MPI_Request last = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_CHAR, process, kLeftOut, signs_, &last);  // should it live after all
    if (last != MPI_REQUEST_NULL) MPI_Request_free(&last);
    life_.forget(process);
  }
  silent_.clear();
  lost_some_ = true;
}

void MpiAttendant::end_left_out() {
  notice("kvlab: the others go on without this rank, which gave no sign of life");
  std::_Exit(1);
}

void MpiAttendant::attend() {
  Clock::time_point next = Clock::now();
  for (; !ended_; std::this_thread::sleep_for(kBetweenCalls)) {
    listen();
    if (Clock::now() < next) continue;
    tell(kSign);
    look_for_silent_ones();
    next = Clock::now() + kBetweenSigns;
  }
  tell(kFarewell);
  while (!has_told_and_heard_farewell()) {
    listen();
    if (Clock::now() >= next) {
      look_for_silent_ones();
      next = Clock::now() + kBetweenSigns;
    }
    std::this_thread::sleep_for(kBetweenCalls);
  }
}

void MpiAttendant::listen() {
  for (;;) {
    int found = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, signs_, &found, &status);
    if (!found) return;
    const int peer = status.MPI_SOURCE, tag = status.MPI_TAG;
    MPI_Recv(nullptr, 0, MPI_CHAR, peer, tag, signs_, MPI_STATUS_IGNORE);
    if (tag == kLeftOut) end_left_out();
    const std::lock_guard lock(mutex_);
    life_.heard(peer);
    if (tag == kFarewell) life_.forget(peer);
  }
}

// Empty messages. One that has not left yet, since who gets it stands still, is sign enough: they must not pile up.
void MpiAttendant::tell(int tag) {
  const std::lock_guard lock(mutex_);
  for (const int peer : peers_) {
    MPI_Request& last = sent_.try_emplace(peer, MPI_REQUEST_NULL).first->second;
    int has_left = 0;
    MPI_Test(&last, &has_left, MPI_STATUS_IGNORE);
    if (!has_left && tag == kSign) continue;
    if (!has_left) MPI_Request_free(&last);
    MPI_Isend(nullptr, 0, MPI_CHAR, peer, tag, signs_, &last);
  }
}

void MpiAttendant::look_for_silent_ones() {
  const std::lock_guard lock(mutex_);
  silent_ = life_.look();
  if (silent_.empty() || borne_) return;
  notice(fmt::format("kvlab: rank {} has given no sign of life for {} s, so all end; what is finished stays",
                     silent_.front(), patience_));
  MPI_Abort(MPI_COMM_WORLD, 1);
}

bool MpiAttendant::has_told_and_heard_farewell() {
  const std::lock_guard lock(mutex_);
  for (const int peer : peers_) {
    int has_left = 0;
    MPI_Test(&sent_.at(peer), &has_left, MPI_STATUS_IGNORE);
    if (!has_left) return false;
  }
  return life_.are_all_forgotten();
}

}  // namespace kv

#endif
