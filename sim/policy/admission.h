#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/slots.h"
#include "sim/policy/layer_view.h"
#include "sim/policy/registry.h"
#include "sim/policy/slot.h"

namespace kv {

// Decides, as tokens come, for how long their entries are seen.
class Admission : public Slot {
 public:
  static constexpr std::string_view kKind = "admission";
  // Everybody sees a token for so many tokens, its own included.
  virtual int window() const { return std::numeric_limits<int>::max(); }
  // Before the block's keys and values are appended: writes, for every row of the layer and token of the block, the
  // position from which on its entry is no longer seen. `expires` is null while caches do not store that, so that
  // `none` is the only admission.
  virtual void admit(const LayerView&, Slots<int32_t> /*expires*/) {}
};

using AdmissionEntry = PartEntry<Admission>;
using RegisterAdmission = RegisterPart<Admission>;

}  // namespace kv
