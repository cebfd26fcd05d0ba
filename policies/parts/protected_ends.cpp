#include "policies/parts/protected_ends.h"

#include <fmt/format.h>

#include "kernels/error.h"
#include "policies/parts/options.h"

namespace kv {

ProtectedEnds::ProtectedEnds(Params& params, const PaperValues& paper)
    : policy_(params.owner()),
      sinks_(option_at_least(params, 0, "sinks", 0,
                             fmt::format("first tokens of the sequence that always stay{}", paper.sinks))),
      recent_(option_at_least(params, 0, "recent", 0, fmt::format("newest entries that always stay{}", paper.recent))) {
}

void ProtectedEnds::check_budget(int kept, int) const {
  const int64_t protect = int64_t{sinks_} + recent_;
  if (kept < protect) {
    throw UserError(fmt::format("{}: budget {} is less than the {} protected entries", policy_, kept, protect));
  }
}

}  // namespace kv
