#pragma once

#include <string>
#include <vector>

#include "sim/policy/policy.h"

namespace kv::ref {

// An admission of a size that texts of 40 tokens feel: of the options that it has those that say so. What learns
// decides by what its training begins with (prepare()): gates that know nothing, about half of them above 0.5.
SlotChoice small_admission(const std::string& name);
SlotChoice small_selection(const std::string& name);

// All that are registered but `none` and `all`, which fill nothing.
std::vector<std::string> filling_admissions();
std::vector<std::string> filling_selections();

}  // namespace kv::ref
