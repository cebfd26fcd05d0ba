#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "harness/report/plan.h"
#include "harness/spec/map_reader.h"
#include "harness/spec/report_reader.h"

namespace kv {

// Reads the spec's `tables`, `plots` and `verdict` (lists) and `paper` (a map); absent ones are empty. A paper block's
// values are {column: value, ..., value: number}, or a line of its table: {column: value, column: [values], value:
// [numbers]}. Unknown keys, columns that are neither standard nor in `names`, names that are no file names, and paper
// values that fit no cell throw UserError.
ReportPlan read_report(MapReader& spec, const RowNames& names);

// One entry of `tables` or `plots`; `used_names` are those taken so far.
TablePlan read_table(ReportReader map, const std::map<std::string, PaperBlock>& paper,
                     std::set<std::string>& used_names);
PlotPlan read_plot(ReportReader map, std::set<std::string>& used_names);
PaperBlock read_paper(ReportReader map);
// One entry of `verdict`, which speaks of these tables.
VerdictPlan read_verdict(MapReader map, const std::vector<TablePlan>& tables);
// Throws UserError unless there is exactly one of metric and ratio, the latter of two metrics.
void check_measure(const ReportReader& map, const Measure& measure);

// Every key that read_report accepts within tables, plots, paper and verdicts.
std::vector<KeySection> table_keys();
std::vector<KeySection> plot_keys();
std::vector<KeySection> paper_keys();
std::vector<KeySection> verdict_keys();

}  // namespace kv
