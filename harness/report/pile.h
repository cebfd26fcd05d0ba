#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/report/cells.h"

namespace kv {

// Rows of one sample that fall into one cell.
struct Sum {
  double total = 0;
  double largest = 0;
  int count = 0;

  void add(double value);
};

// What one cell has gathered. A sample holds one sum, or two for a ratio.
struct Pile {
  std::vector<std::array<Sum, 2>> samples;
  std::map<Key, std::size_t> index;  // a sample's place in `samples`
  std::set<Key> skipped;
  std::string reason, unit;
  std::vector<std::set<std::string>> spread;  // values seen of the free columns
};

// The cell's number with its bootstrap interval over samples; absent without a sample that has all it needs.
std::optional<Estimate> estimate(const Pile& pile, const Measure& measure, bool intervals);

// What that number differs by from the other cell's, over the samples that both have: each draw of the bootstrap takes
// the same samples of both, so what is hard for both does not widen the interval. relative: in % of the other's number.
std::optional<Estimate> estimate_difference(const Pile& pile, const Pile& other, const Measure& measure, bool relative,
                                            bool intervals);

}  // namespace kv
