#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/report/pile.h"
#include "harness/report/plan.h"
#include "harness/rows.h"

namespace kv {

// Numbers at equal realised size (TablePlan::at). What a cell would average over, policies and points of the axes that
// no row or column of the table tells apart, are its settings, and every sample has a size of its own in each: the mean
// of the metric's rows of that sample and setting.
//
// Of each sample the number is interpolated linearly over the size, between the two of its settings next to the wanted
// size on either side; of a ratio both its sums are, so that over samples it stays a quotient of sums. Settings of one
// size are one, at the mean of their numbers; one that has the wanted size needs no other. A setting without a row of
// the size or of the number (a skipped case) is none, and its neighbours are next to each other. There is no
// extrapolation: a sample whose settings all lie to one side is left out and counted. What is interpolated is a
// sample's number like any other: clusters, intervals and pairs are as everywhere (harness/report/cells.h).

// The size of every sample in every setting.
class Sizes {
 public:
  Sizes(const RowTable& table, const std::string& metric);
  // Of the row's sample at the row's setting; absent where no row tells.
  std::optional<double> of(const Row& row) const;

 private:
  std::map<std::vector<std::string>, Sum> sums_;
};

// The columns whose values make a setting: the policy, and every axis.
bool tells_settings(const RowTable& table, const std::string& column);

// The cell's samples at that size: a place each, number 0. Of the pile, whose places are settings, the samples that
// were left out become the result's.
Pile at_size(const Pile& pile, double size, const Measure& measure);

}  // namespace kv
