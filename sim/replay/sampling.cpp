#include "sim/replay/sampling.h"

#include <fmt/format.h>

#include "kernels/error.h"

namespace kv {

void check_sampling(const Sampling& sampling) {
  const auto refuse = [](const char* what, double value, const char* expected) {
    throw UserError(fmt::format("generation: {} {}: expected {}", what, value, expected));
  };
  if (!(sampling.temperature >= 0 && sampling.temperature <= 1e4f)) {
    refuse("temperature", sampling.temperature, "0 (greedy) to 10000");
  }
  if (sampling.top_k < 0) refuse("top-k", sampling.top_k, "0 (all) or more");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) refuse("top-p", sampling.top_p, "above 0 and at most 1");
}

}  // namespace kv
