#include "sim/policy/slot.h"

namespace kv {

void begin_slot(Slot& slot, BatchShape shape, const Baseline* pass) {
  shape.future = slot.needs().future ? pass : nullptr;
  slot.begin(shape);
}

}  // namespace kv
