#include "policies/parts/options.h"

#include <fmt/format.h>

#include "sim/policy/largest_count.h"

namespace kv {

namespace {

void refuse_above_largest(const Params& params, std::string_view key, int value) {
  if (value > kLargestCount) params.fail(key, fmt::format("expected at most {}", kLargestCount));
}

}  // namespace

int option_at_least(Params& params, int minimum, std::string_view key, int fallback, std::string_view help) {
  const int value = params.get(key, fallback, help);
  if (value < minimum) params.fail(key, fmt::format("expected at least {}", minimum));
  refuse_above_largest(params, key, value);
  return value;
}

int kernel_option(Params& params, int fallback, std::string_view help) {
  const int value = params.get("kernel", fallback, help);
  if (value < 1 || value % 2 == 0) params.fail("kernel", "expected a positive odd number");
  refuse_above_largest(params, "kernel", value);
  return value;
}

double fraction_option(Params& params, std::string_view key, double fallback, std::string_view help) {
  const double value = params.get(key, fallback, help);
  if (value < 0 || value > 1) params.fail(key, "expected a number between 0 and 1");
  return value;
}

}  // namespace kv
