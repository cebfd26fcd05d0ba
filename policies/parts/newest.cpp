#include "policies/parts/newest.h"

#include <algorithm>

#include "policies/parts/options.h"

namespace kv {

int recent_option(Params& params) {
  return option_at_least(params, -1, "recent", 0,
                         "newest entries that always stay, where they are more than the window; -1: the interval");
}

int protected_newest(int recent, int window, int interval) { return std::max(window, recent < 0 ? interval : recent); }

}  // namespace kv
