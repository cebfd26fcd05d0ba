#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/select_pooled.h"
#include "kernels/tensor.h"
#include "sim/policy/allocation.h"

namespace kv {

// How many entries each head has among the best of all that share a budget (kernels/select_pooled.h): the heads of a
// layer, or of the whole model. Protected entries and each head's own best `least` come first.
class PooledCounts {
 public:
  enum class Scope : uint8_t { kLayer, kModel };

  // Writes the counts of due sequences, [layers, rows], as Allocation::allocate, but that their sum is `kept` a head,
  // or what is there of pools with less (fill_up of sim/budget/divide.h). UserError in the name of `owner` where `kept`
  // is less than what is protected.
  void count(const AllocateArgs& args, Scope scope, int kept, int least, std::string_view owner,
             std::span<int32_t> counts);

 private:
  SelectPooledArgs::Layer pooled_layer(const AllocateArgs& args, size_t layer);
  void select(const AllocateArgs& args, int kept, std::span<const SelectPooledArgs::Layer> layers);
  void read(const AllocateArgs& args, std::span<int32_t> counts) const;

  Tensor least_, totals_, kept_;  // [rows], [sequences], [layers, rows]
  std::vector<Tensor> keep_;      // [layers] of [rows, pitch]: the sets, which the counts stand for
};

}  // namespace kv
