#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/report/plan.h"
#include "harness/report/table.h"
#include "harness/rows.h"
#include "harness/statistics.h"

namespace kv {

// A number that a check looked at.
struct CheckedCell {
  std::string label{};            // the values of the columns that the check leaves free
  std::optional<double> value{};  // absent where the cell, or what it is compared with, has none
  std::optional<Interval> interval{};
  bool unpaired = false;  // two cells without a row in common, each by its own number: there is no interval
  bool holds = false;     // never without a value
};

struct CheckResult {
  VerdictCheck check{};
  std::string subject{};  // what is compared: "h2o / snapkv (table2)"
  int digits = 3;
  std::vector<CheckedCell> cells{};

  bool has_number() const;
  // A number without the interval that is asked: it neither holds nor fails.
  bool lacks_interval(const CheckedCell& cell) const;
  // Whether the cells say that it holds, or that it does not: not without a number, nor where that hangs on an interval
  // which a cell lacks.
  bool is_decided() const;
  // In every cell, or in some; never where there is none.
  bool holds() const;
};

struct VerdictResult {
  Outcome outcome = Outcome::kUntestable;
  std::vector<CheckResult> testable{}, reproduced{}, partly{}, numbers{};
};

// Numbers come from the same code as the tables' own; those compared with another cell's are paired by sample, as in a
// table of differences, unless the two have no rows in common: other metrics, or values that stand for other samples.
VerdictResult judge(const VerdictPlan& verdict, const ReportPlan& plan, const RowTable& rows);

// UserError at the verdict where it calls a criterion fixed beforehand that is younger than the rows, which were made
// on `date` (YYYY-MM-DD…; empty: unknown).
void check_fixed(const VerdictPlan& verdict, std::string_view date);

std::string bound_text(const VerdictCheck& check);               // "> 1, interval"
std::string interval_text(const CheckedCell& cell, int digits);  // "[0.9, 1.1]"; empty where there is none to show

// As a table: a row a number, notes with the criterion and when it was fixed. `number`: of the page's verdicts.
TableView verdict_view(const VerdictPlan& verdict, const VerdictResult& result, int number);

}  // namespace kv
