#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/report/pile.h"
#include "harness/report/plan.h"

namespace kv {

// The cells that one is compared with: all of them, or none where one is missing. One that has a compared value itself
// has none: the difference would be that of a cell from itself.
struct Partners {
  std::vector<Term> terms{};
  bool several = false;  // one is missing because several fit no better than each other
};

// `columns`: those of the keys. In what is compared a partner has the value itself; among the others what it lacks fits
// every value (KeyMatch).
Partners partners_of(const Key& key, const std::map<Key, Pile>& piles, const std::vector<std::string>& columns,
                     const Pairing& pairing);

}  // namespace kv
