#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/statistics.h"

namespace kv {

using Key = std::vector<std::string>;  // one value a key column

struct Skipped {
  int samples = 0;     // without a value
  std::string reason;  // of the first

  bool operator==(const Skipped&) const = default;
};

// What a difference had to leave out, in samples.
struct Unpaired {
  int samples = 0, partner_samples = 0;  // no row of it has a partner on the other side
  int partly = 0;                        // paired, less rows that only one side has
  int unclear = 0;  // paired at most less rows, some of which several of the other side's would fit
};

struct Cell {
  std::optional<Estimate> estimate;  // of a difference: its samples are the pairs
  std::string unit;
  Skipped skipped;
  Skipped partner_skipped;  // these two of a difference only
  Unpaired unpaired;
};

// "0.50" and "0.5" are the same value.
bool same_value(const std::string& a, const std::string& b);

}  // namespace kv
