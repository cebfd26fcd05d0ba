#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

// One row of a sequence that shares its budget with others.
struct PooledRow {
  int layer = 0;
  int head = 0;
  std::vector<float> scores = {};
  std::vector<float> ties = {};  // may be empty
  std::vector<int32_t> positions = {};
  int least = 0;
};

// The masks of one sequence's rows, by a full sort of the documented order.
std::vector<std::vector<uint8_t>> select_pooled(const std::vector<PooledRow>& rows, int count, int sinks, int recent);

}  // namespace kv::ref
