#include "kernels/cpu/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

namespace kv::cpu {

namespace {

int allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());  // more of them than the set has bits
}

// "QUOTA PERIOD" in microseconds, or "max PERIOD"; a container sees its own group at the root.
int granted_processors() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return std::numeric_limits<int>::max();
  const double processors = std::ceil(std::strtod(quota.c_str(), nullptr) / period);
  return processors >= 1 && processors < 1e6 ? static_cast<int>(processors) : std::numeric_limits<int>::max();
}

}  // namespace

int usable_processors() { return std::max(1, std::min(allowed_processors(), granted_processors())); }

}  // namespace kv::cpu
