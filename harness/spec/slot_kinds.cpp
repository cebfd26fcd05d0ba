#include "harness/spec/slot_kinds.h"

#include "harness/spec/case_check.h"
#include "harness/spec/names.h"

namespace kv {

const std::vector<SlotKind>& slot_kinds() {
  static const std::vector<SlotKind> kKinds = {
      {kAllocationAxis, &SlotChoices::allocation, [] { return names_of(allocations()); }, describe_allocation},
      {kAdmissionAxis, &SlotChoices::admission, [] { return names_of(admissions()); }, describe_admission},
      {kSelectionAxis, &SlotChoices::selection, [] { return names_of(selections()); }, describe_selection}};
  return kKinds;
}

}  // namespace kv
