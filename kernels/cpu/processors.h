#pragma once

namespace kv::cpu {

// Threads that this process can really run at once: its processors (sched_getaffinity), or what the quota of its
// control group grants (cgroup v2's cpu.max, rounded up), if that is less. At least 1.
int usable_processors();

}  // namespace kv::cpu
