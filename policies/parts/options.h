#pragma once

#include <string_view>

#include "sim/policy/params.h"

namespace kv {

// An integer option that must be at least `minimum`, and at most kLargestCount.
int option_at_least(Params& params, int minimum, std::string_view key, int fallback, std::string_view help);

// The width of a pooling window: odd, so that it has a middle, and at most kLargestCount.
int kernel_option(Params& params, int fallback, std::string_view help);

// A number in [0, 1].
double fraction_option(Params& params, std::string_view key, double fallback, std::string_view help);

}  // namespace kv
