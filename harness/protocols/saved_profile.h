#pragma once

#include <filesystem>
#include <string>

#include "sim/budget/profile.h"

namespace kv {

// A profile says when it was made (BudgetProfile::origin), so one made again has another SHA-256: runs that read it
// start over.
struct SavedProfile {
  std::string label;  // of the policy
  std::filesystem::path file;
  BudgetProfile profile;
};

}  // namespace kv
