#include "sim/policy/baseline.h"

#include <numeric>

namespace kv {

void BaselineNeeds::merge(const BaselineNeeds& other) {
  statistics_block = std::gcd(statistics_block, other.statistics_block);
  block_sums |= other.block_sums;
  block_max |= other.block_max;
  outputs |= other.outputs;
  projections |= other.projections;
  value_norms |= other.value_norms;
  hidden |= other.hidden;
}

}  // namespace kv
