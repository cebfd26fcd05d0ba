#pragma once

#if KVLAB_MPI

#include <mpi.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "harness/ranks/signs_of_life.h"

namespace kv {

// A thread of each MPI process that calls MPI now and then, for two reasons. Where a network cannot add to another
// process's memory by itself, MPI does it when the process that owns the memory happens to call it, which may be in the
// middle of a long unit of work. And each process hears whether the first one lives, and the first whether all do:
// where a launcher lets the others live when one has died, who waits for it would wait for ever.
class MpiAttendant {
 public:
  // Collective. Who is not heard of for so many seconds is silent.
  explicit MpiAttendant(double patience);
  // Collective of those that are not left out: returns once each has heard farewell.
  ~MpiAttendant();
  MpiAttendant(const MpiAttendant&) = delete;
  MpiAttendant& operator=(const MpiAttendant&) = delete;

  // Of the first process: who is silent, by their numbers in MPI_COMM_WORLD.
  std::vector<int> silent();
  // Whether the first process lets silent ones be; otherwise it says that there are some, and ends all, as the others
  // always do where the first one is silent.
  void bear_silence(bool borne) { borne_ = borne; }
  void leave_out(const std::vector<int>& silent);
  // Of a process that was left out and lives, however it learns of it.
  [[noreturn]] static void end_left_out();

 private:
  void attend();
  void listen();
  void tell(int tag);
  void look_for_silent_ones();
  bool has_told_and_heard_farewell();

  const double patience_;
  MPI_Comm signs_ = MPI_COMM_NULL;
  std::mutex mutex_;                 // the following four
  std::vector<int> peers_;           // of whom this process hears, and they of it
  std::map<int, MPI_Request> sent_;  // the last message to each
  SignsOfLife life_;
  std::vector<int> silent_;
  bool lost_some_ = false;
  std::atomic<bool> ended_ = false, borne_ = false;
  std::thread thread_;
};

}  // namespace kv

#endif
