#pragma once

#include <string_view>

#include "kernels/paged.h"
#include "sim/policy/layer_view.h"
#include "sim/policy/registry.h"
#include "sim/policy/slot.h"

namespace kv {

// Decides which pages attention reads.
class Selection : public Slot {
 public:
  static constexpr std::string_view kKind = "selection";
  // After the block was appended, before it is attended: `read` is the layer's cache, of which a selection may put in
  // other page tables and lengths.
  virtual void select(const LayerView&, PagedView& /*read*/) {}
};

using SelectionEntry = PartEntry<Selection>;
using RegisterSelection = RegisterPart<Selection>;

}  // namespace kv
