#include "kernels/cpu/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "kernels/check.h"

namespace kv::cpu {

namespace {

// Linux's own estimate of what programs can take without swapping, file caches given up.
Memory memory_of_machine() {
  Memory memory;
  std::ifstream file("/proc/meminfo");
  for (std::string key, value; file >> key && std::getline(file, value);) {
    const size_t bytes = std::strtoull(value.c_str(), nullptr, 10) * 1024;
    if (key == "MemTotal:") memory.total = bytes;
    if (key == "MemAvailable:") memory.free = bytes;
  }
  KV_CHECK(memory.total > 0);
  return memory;
}

size_t address_space_in_use() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  KV_CHECK(pages > 0);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Memory memory() {
  Memory memory = memory_of_machine();
  rlimit limit{};
  KV_CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
  if (limit.rlim_cur == RLIM_INFINITY) return memory;
  const size_t allowed = limit.rlim_cur;
  memory.total = std::min(memory.total, allowed);
  memory.free = std::min(memory.free, allowed - std::min(allowed, address_space_in_use()));
  return memory;
}

}  // namespace kv::cpu
