#pragma once

#include <cmath>

#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// What the benchmarks of attention share.

namespace kv::bench {

struct Heads {
  int query;
  int kv;
};

// On the CPU those of the reference model, else those of Llama-3.1-8B and of Qwen3-4B and 8B.
inline Heads heads_of(const Device& device) { return device.pick(Heads{8, 4}, Heads{32, 8}); }

inline float scale_of(int head_dim) { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

}  // namespace kv::bench
