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

// Samples that a number at an equal size leaves out, since none of their settings has that size and they do not lie on
// both sides of it (harness/report/equal_size.h).
struct Outside {
  int samples = 0;
  int settings = 0;          // the most that one of them has a size and a number in
  double low = 0, high = 0;  // the least and the largest of those sizes

  bool operator==(const Outside&) const = default;
};

struct Cell {
  std::optional<Estimate> estimate;  // of a difference: its samples are the pairs
  std::string unit;
  Skipped skipped;
  Outside outside;
  Skipped partner_skipped;  // these three of a difference only
  Outside partner_outside;
  Unpaired unpaired;
};

// "0.50" and "0.5" are the same value.
bool same_value(const std::string& a, const std::string& b);

}  // namespace kv
