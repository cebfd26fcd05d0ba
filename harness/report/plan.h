#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/report/verdict_plan.h"

namespace kv {

// What a spec asks to be drawn from its rows. A "column" below is a column of rows.csv: a standard one or an axis.

enum class Aggregate { kMean, kMedian, kMax };  // over samples; within a sample always the mean (kMax: the largest)
enum class Better { kUnknown, kLower, kHigher };
enum class IntervalStyle { kNone, kRange, kHalfWidth };  // 95 % bootstrap over samples: [low, high], or +- half of it
enum class Scale { kLinear, kLog2, kLog10 };
enum class TableKind { kCells, kListing };
enum class PlotKind { kCurve, kBars, kScatter, kRoofline, kHeatmap, kImage };

// The values of a column that rows may have: these, or all but these.
struct ColumnFilter {
  std::vector<std::string> values{};
  bool excludes = false;

  bool operator==(const ColumnFilter&) const = default;
};
using Where = std::map<std::string, ColumnFilter>;
using Labels = std::map<std::string, std::string>;  // raw value or column name -> how readers see it

struct Measure {
  std::vector<std::string> metrics{};
  // Two metrics instead: sum of the first over samples / sum of the second. {nll_sum_policy, nll_sum_full} is the loss
  // ratio of the pooled samples.
  std::vector<std::string> ratio{};
  Aggregate aggregate = Aggregate::kMean;
  std::string
      unit{};  // "ms", "GB" or "%": how seconds, bytes and plain numbers are shown; empty: as the rows have them
};

// A value of a column that others are compared with. where: its place in the spec.
struct Level {
  std::string column{}, with{}, where{};
};

// A table of differences: each cell's number less that of the cell with the value `with` in `column` and the same other
// keys, over the rows that both have. relative: in % of the latter.
//
// beside: of interactions of two columns. The difference that `column` makes in a cell, less the one that it makes
// where the other column has its level: [x(a, b) - x(with, b)] - [x(a, level) - x(with, level)], over the rows that all
// four have. relative: in % of the last, so that effects that add up make 0.
struct Pairing {
  std::string column{}, with{};
  bool relative = false;
  std::optional<Level> beside{};
  std::string where{};  // the place of `with` in the spec
};

// A comparison at equal realised size: cells hold the table's number at each of the values of `metric`, of which every
// sample and setting has its own (harness/report/equal_size.h). The table's last column key is `metric`, its values
// these, as written.
struct EqualSize {
  std::string metric{};
  std::vector<std::string> values{};
};

// kCells: one aggregated number a cell, cells keyed by `rows` x `columns` ("metric" is a column, too).
// kListing: the rows themselves, `columns` shown, the `limit` largest values a group of `rows`.
struct TablePlan {
  TableKind kind = TableKind::kCells;
  std::string name, title, note;
  Measure measure;
  std::vector<std::string> rows, columns;
  Where where;
  Labels labels;
  int digits = 3;
  IntervalStyle interval = IntervalStyle::kRange;
  std::string paper;     // name of a PaperBlock, or empty
  bool kendall = false;  // a last row: Kendall's tau-b between our ordering of rows and the paper's, a column
  Better better = Better::kUnknown;
  std::optional<EqualSize> at;
  std::optional<Pairing> paired;
  std::vector<std::string> unranked;  // row values that cannot be "best": the full cache, an oracle
  int limit = 20;
};

// A line that values are compared with, across a plot: at an x, or at a value of what is measured.
struct ReferenceLine {
  std::optional<double> x{}, y{};  // one of them
  std::string label{};
};

// kCurve: measure against a numeric column x, a line a series, a 95 % band; or against a metric (`measured_x`), each
// point a case at its own mean of it, joined in its order (harness/report/case_points.h). kBars: groups x, a bar a
// series, error bars. kScatter: measure against the metric x, a point a case. kRoofline: two metrics, work per byte
// against work per second, a point for each `series` x `label`, below the two `ceilings`. kHeatmap: columns x and y,
// colour the measure. kImage: a matrix whose row i is the row with x = i, its entries the space-separated numbers of
// `text`. A panel a value of `facet`; many of a curve by several facet columns stand in a grid, a column a value of the
// last (layer x head).
struct PlotPlan {
  PlotKind kind = PlotKind::kCurve;
  std::string name, title, note;
  Measure measure;
  std::string x, y;
  bool measured_x = false;  // x is a metric, not a column
  std::vector<std::string> series, facet;
  std::vector<std::string> label;     // of a roofline: the columns that are written beside a point
  std::vector<std::string> ceilings;  // of a roofline: metrics of one value each, bytes per second and work per second
  Where where;
  Labels labels;
  std::string x_label, y_label, z_label;
  Scale x_scale = Scale::kLinear, y_scale = Scale::kLinear, z_scale = Scale::kLinear;
  std::optional<std::array<double, 2>> x_range, y_range, z_range;
  std::vector<ReferenceLine> references;
  bool band = true;
};

struct PaperValue {
  std::map<std::string, std::string> keys;  // column -> value
  std::string printed;                      // as the paper prints it: 1.2730
  double value = 0;
};

struct PaperBlock {
  std::string table{}, page{}, caption{};
  std::vector<PaperValue> values{};
};

struct ReportPlan {
  std::vector<TablePlan> tables;
  std::vector<PlotPlan> plots;
  std::map<std::string, PaperBlock> paper;
  std::vector<VerdictPlan> verdicts;
};

}  // namespace kv
