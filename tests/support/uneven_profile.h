#pragma once

#include <string>

#include "sim/budget/profile_file.h"
#include "sim/model/source_info.h"

namespace kv::test {

// A budget profile's text: heads that lose from little to nearly everything, in another order at every ratio.
inline std::string uneven_profile(const std::string& scorer, const SourceInfo& info) {
  const ProfileLosses::Curve none(kProfileRatios, 0);
  BudgetProfile profile{.model = "tiny",
                        .fingerprint = "any",
                        .scorer = scorer,
                        .protection = {},
                        .calibration = {{"noise"}, 1, 1, 100, 0},
                        .losses = {none, none, none, none},
                        .split_half = {},
                        .layers = info.layers,
                        .kv_heads = info.kv_heads,
                        .removed = {}};
  for (int i = 0; i < kProfileRatios * info.layers * info.kv_heads; ++i) {
    profile.removed.push_back(static_cast<float>(i * 37 % 100) / 101);
  }
  return format_profile(profile);
}

}  // namespace kv::test
