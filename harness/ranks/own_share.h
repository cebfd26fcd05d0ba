#pragma once

#include <string>
#include <vector>

#include "harness/ranks/ranks.h"

namespace kv {

// What a process says of where it runs, for those beside it.
struct Seat {
  std::string host;
  std::string cores;  // that it may use, as a mask
  std::string gpus;   // CUDA_VISIBLE_DEVICES: empty where all are hidden; "all" where it is not set
};

// What a rank takes of its machine, beside other ranks there.
struct OwnShare {
  int ranks = 1;             // that have the same cores and share them
  int ranks_of_machine = 1;  // in all
  int gpu = 0;               // its place among those that CUDA_VISIBLE_DEVICES names, or among all
};

// Where the launcher gave each rank of a machine cores or GPUs of its own, these are its share; where all have the same
// ones, each takes as many of the cores, and the GPU of its place among the machine's ranks.
OwnShare own_share(const std::vector<Seat>& seats, int rank);

// The entry of such a list, "0" to "n" where all are seen. Shorter lists begin again: some launchers let each rank see
// one GPU, which is another one for each but has the same number; that it is its own, require_own_devices() sees to.
std::string visible_gpu(const std::string& gpus, int place);
// Collective: UserError, as agree() has it, where two ranks have one Backend::device_identity() that is not empty.
void require_own_devices(Ranks& ranks, const std::string& device);

// Collective: leaves this process as many threads as its share of the cores, unless it was told how many, and its own
// GPU alone. Before anything asks for one. Says so where the launcher left it few.
void take_own_share(Ranks& ranks);

}  // namespace kv
