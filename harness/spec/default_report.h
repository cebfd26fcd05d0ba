#pragma once

#include <string>

#include "harness/spec/spec.h"

namespace kv {

// Returns the keys `tables` and `plots` of a spec that has neither, as YAML: for each headline of its protocol and
// metrics a table of policies (and allocations) by data and axes of more than one value, with intervals, and a curve
// over its first numeric axis, or bars by data where it has none. Empty where nothing has a headline.
std::string default_report(const Spec& spec);

}  // namespace kv
