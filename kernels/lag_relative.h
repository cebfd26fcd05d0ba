#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// LagKV: how far the values of an entry's channels spread in the range of the entries that follow.
// Paper: Liang et al., "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important" (2025), as
// kvpress' LagKVPress has it. The n entries of a row after its first `sinks` lie in whole partitions of `lag`, the rest
// is its tail. With min and max of a channel over the *next* partition, over the channels c and the partition's slots
// j:
//   σ_j = std_c((x_jc − min_c) / (max_c − min_c)),  unbiased;  r_j = softmax_j(σ);  s_j = (r_j of keys + r_j of
//   values)/2
// kShare writes s_j; kRank its rank within the partition over `lag`, in [0, 1): the least is 0, of equal ones the
// older. The sinks, the last partition and the tail, which nothing follows, get 1. Rows of fewer than sinks + 2 · lag
// entries get 1 for the sinks and (slot − sinks) / (n − sinks) for the others, so the newest stay. A channel without a
// range (max = min; kvpress divides by zero) counts as 0 for every entry; head_dim 1 has σ = 0.
struct LagRelativeArgs {
  enum class Scale : uint8_t { kRank, kShare };
  PagedView cache;
  int sinks = 4;
  int lag = 128;  // 1 to kLargestLag
  Scale scale = Scale::kRank;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  Slots<float> scores;
};

inline constexpr int kLargestLag = 2048;

namespace cpu {
void lag_relative(const LagRelativeArgs& args);
}
namespace cuda {
void lag_relative(const LagRelativeArgs& args);
}

}  // namespace kv
