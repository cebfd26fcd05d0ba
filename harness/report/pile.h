#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "harness/report/cell.h"
#include "harness/report/plan.h"

namespace kv {

// Values that fall together.
struct Sum {
  double total = 0;
  double largest = 0;
  int count = 0;

  void add(double value);
  void add(const Sum& other);
};

// One sample's rows, by the place that they have in it: metric and free columns (layer, head, axes ...), numbered over
// all cells; where nothing is paired, all in place 0. A place holds a sum for each metric of a ratio (paired: for one
// of them, as the metric is part of the place), else only the first.
using Places = std::map<std::size_t, std::array<Sum, 2>>;

// A sample's value, or numerator and denominator; none where it lacks a metric of the ratio.
std::optional<std::array<double, 2>> number_of(const std::array<Sum, 2>& sums, const Measure& measure);

// What one cell has gathered.
struct Pile {
  std::vector<Places> samples;
  std::map<Key, std::size_t> index;    // a sample's place in `samples`
  std::vector<std::string> documents;  // of each sample; empty where none is known
  // Of each sample, where numbers are of an equal size: that of each place, which is a setting then.
  std::vector<std::map<std::size_t, double>> sizes;
  Outside outside;  // of what is left of such a cell
  std::set<Key> skipped;
  std::string reason, unit;
  std::vector<std::set<std::string>> spread;  // values seen of the free columns
};

// How well `other` may stand for `wanted`: loosely where values that it lacks are all that tells them apart, as the
// full cache has no allocation and is compared with each.
enum class KeyMatch { kNone, kLoose, kExact };
KeyMatch match(const Key& wanted, const Key& other);

// What may stand for a key, of all that is offered: the exact fit, else the only loose one. Where several fit loosely
// nothing says which is meant, and none does.
template <class T>
class BestFit {
 public:
  void offer(KeyMatch fits, const T& candidate) {
    if (fits == KeyMatch::kNone || exact_) return;
    exact_ = fits == KeyMatch::kExact;
    several_ = !exact_ && found_;
    found_ = &candidate;
  }
  const T* found() const { return several_ ? nullptr : found_; }
  bool several() const { return several_; }

 private:
  const T* found_ = nullptr;
  bool exact_ = false, several_ = false;
};

// The cell's number with its bootstrap interval over samples; absent without a sample that has all it needs.
std::optional<Estimate> estimate(const Pile& pile, const Measure& measure, bool intervals);

// Another cell's number in a difference, less it or plus it.
struct Term {
  const Pile* pile = nullptr;
  int sign = -1;
};

// What that number makes with the other cells' numbers, at least one. Only rows that all of them have count: of the
// same sample, and of the same place in it (`keys`, a key a place; the best fit). Each draw of the bootstrap takes the
// same samples of all, so what is hard for all does not widen the interval. relative: in % of the last one's number.
struct Difference {
  std::optional<Estimate> estimate;
  Unpaired unpaired;
};
Difference estimate_difference(const Pile& pile, std::span<const Term> others, std::span<const Key> keys,
                               const Measure& measure, bool relative, bool intervals);

}  // namespace kv
