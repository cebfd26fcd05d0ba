#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/report/plan.h"
#include "harness/rows.h"
#include "harness/statistics.h"

namespace kv {

// Who is best in one column of a table that says what is better, and by how much.
struct Leader {
  std::string column{};                // "budget=512"; empty where the table has one column
  std::string name{};                  // of the row
  std::string runner_up{};             // of the next one
  double ahead = 0;                    // the runner-up's number less the leader's
  std::optional<Interval> interval{};  // of that difference, on the same samples; absent where they are fewer than 8
};

// One a column in which two ranked rows or more have numbers, in the table's order; none of a table that is not ranked.
// Rows that the table does not rank (the full cache, an oracle) lead nothing. Of equal numbers the first row leads.
std::vector<Leader> leaders_of(const TablePlan& table, const RowTable& rows);

}  // namespace kv
