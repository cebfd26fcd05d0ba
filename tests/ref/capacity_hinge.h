#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

struct CapacityHinge {
  double loss = 0;
  int64_t overfull = 0;
  std::vector<double> gradient;  // of weight 1
};

struct Capacity {
  int64_t pooled = 1;
  int64_t capacity = 0;
};

// Place by place: occupancy[i] at position positions[i].
CapacityHinge capacity_hinge(const std::vector<double>& occupancy, const std::vector<int64_t>& positions,
                             const Capacity& capacity);

}  // namespace kv::ref
