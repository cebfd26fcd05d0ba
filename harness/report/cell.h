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
  int samples = 0;                     // no row of it has a partner on every other side
  std::vector<int> partner_samples{};  // so, too, a partner
  int partly = 0;                      // paired, less rows that not every side has
  int unclear = 0;                     // paired at most less rows, some of which several of another side's would fit
};

// Samples that a number at an equal size leaves out, since none of their settings has that size and they do not lie on
// both sides of it (harness/report/equal_size.h).
struct Outside {
  int samples = 0;
  int settings = 0;          // the most that one of them has a size and a number in
  double low = 0, high = 0;  // the least and the largest of those sizes

  bool operator==(const Outside&) const = default;
};

// A cell that a difference is taken from: what it lacks itself.
struct Partner {
  Skipped skipped{};
  Outside outside{};
};

struct Cell {
  std::optional<Estimate> estimate;  // of a difference: its samples are the pairs
  std::string unit;
  Skipped skipped;
  Outside outside;
  // These two of a difference only. It has one partner; an interaction (Pairing) three, of which the first has the
  // other value in the one column, the second in the other, and the last in both.
  std::vector<Partner> partners{};
  Unpaired unpaired{};
};

// The place of a column among the key columns, which have it.
std::size_t place_among(const std::vector<std::string>& columns, const std::string& column);

// "0.50" and "0.5" are the same value.
bool same_value(const std::string& a, const std::string& b);

}  // namespace kv
