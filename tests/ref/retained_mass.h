#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

struct RetainedMass {
  double evicted = 0;
  double error = 0;
  double cosine = 0;
};

// One query head over the keys [count, dim] that the query sees; keep [count].
RetainedMass retained_mass(const std::vector<float>& query, const std::vector<float>& keys,
                           const std::vector<float>& values, const std::vector<uint8_t>& keep, double scale);

}  // namespace kv::ref
