#pragma once

#include <cstdint>
#include <vector>

namespace kv {

// Where the exact search gives up.
struct ExactLimits {
  double steps = 2e10;                // pairs of a partial sum and an option: about 10 s
  int64_t states = int64_t{1} << 26;  // partial sums of all heads, 8 bytes each
};

// One choice of a head: by how many entries it deviates from the head's reference count, at which excess >= 0.
struct Option {
  int64_t deviation;
  double excess;
};

// [heads] a head's options by decreasing deviation, at least one.
using Options = std::vector<std::vector<Option>>;

// One option a head, of deviations that add up to `target` and of smallest excess (equal to the bit: the
// lexicographically largest deviations); their deviations, empty where every such choice has a sum above `cap`. A
// dynamic program over partial sums of the heads from the last to the first, in which only sums that the heads left can
// bring to the target, at an excess within the cap, are states. UserError where the limits are exceeded.
std::vector<int64_t> search_capped(const Options& options, int64_t target, double cap, const ExactLimits& limits);

}  // namespace kv
