#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/spec/report_plan.h"
#include "sim/policy/spelling.h"

namespace kv {
namespace {

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A paper value must name every key of the table's cells and no other, or it would be shown at the wrong place or
// nowhere.
void check_paper_values(const TablePlan& table, const PaperBlock& paper, const MapReader& map) {
  for (const PaperValue& value : paper.values) {
    for (const auto& [key, text] : value.keys) {
      if (holds(table.rows, key) || holds(table.columns, key) || table.where.contains(key)) continue;
      map.fail_here(
          fmt::format("paper block '{}' has values by '{}', which is no row, column or where key", table.paper, key));
    }
    for (const auto* keys : {&table.rows, &table.columns}) {
      for (const std::string& key : *keys) {
        if (value.keys.contains(key)) continue;
        map.fail_here(
            fmt::format("paper block '{}' has the value {} without the key '{}'", table.paper, value.printed, key));
      }
    }
  }
}

void check_paper(const MapReader& map, const TablePlan& table, const std::map<std::string, PaperBlock>& paper) {
  if (table.paper.empty()) {
    if (table.kendall) map.fail("kendall", "expected a 'paper' block to compare with");
    return;
  }
  if (paper.empty()) map.fail("paper", "expected a block under the spec's 'paper', which has none");
  const auto block = paper.find(table.paper);
  if (block == paper.end()) {
    std::vector<std::string> names;
    for (const auto& [name, unused] : paper) names.push_back(name);
    map.fail("paper", fmt::format("expected one of the blocks under 'paper'{} ({})", did_you_mean(table.paper, names),
                                  fmt::join(names, ", ")));
  }
  check_paper_values(table, block->second, map);
}

constexpr const char* kBeside = "beside";

Pairing read_pairing(MapReader& map) {
  Pairing pairing;
  pairing.column = map.required_text("column", "the column whose values are compared: one of the rows and columns");
  pairing.with = map.required_text("with", "the value of that column that is taken from each other one");
  pairing.relative = map.flag("relative", false, "in % of the latter; beside another column, of both their values");
  map.find(kBeside, "map", "instead the interaction with another column: the difference less that at its value");
  if (map.has("with")) pairing.where = map.where("with");
  return pairing;
}

Level read_beside(MapReader& map) {
  Level level;
  level.column = map.required_text("column", "the other column: one of the rows and columns, too");
  level.with = map.required_text("with", "its value at which the difference is taken from that at each other one");
  if (map.has("with")) level.where = map.where("with");
  return level;
}

void check_compared_column(const TablePlan& table, const MapReader& map, const std::string& column) {
  std::vector<std::string> keys = table.rows;
  keys.insert(keys.end(), table.columns.begin(), table.columns.end());
  if (holds(keys, column)) return;
  map.fail("column", fmt::format("expected one of the table's rows and columns{} ({})", did_you_mean(column, keys),
                                 fmt::join(keys, ", ")));
}

void check_pairing(MapReader& map, const TablePlan& table, const MapReader& pair, const Pairing& pairing) {
  check_compared_column(table, pair, pairing.column);
  if (table.kind == TableKind::kListing) map.fail("paired", "expected no such key in a listing");
  if (!table.paper.empty()) map.fail("paired", "expected no such key beside 'paper', which prints no differences");
  if (!table.unranked.empty()) map.fail("paired", "expected no such key beside 'unranked': differences have no rank");
}

Level beside_of(const MapReader& pair, const TablePlan& table) {
  MapReader map(pair.document(), pair.node()[kBeside], fmt::format("{}: {}", pair.owner(), kBeside));
  Level level = read_beside(map);
  map.finish();
  check_compared_column(table, map, level.column);
  if (level.column == table.paired->column) map.fail("column", "expected another column than that of 'paired'");
  return level;
}

constexpr const char* kPaired = "paired";
constexpr const char* kAt = "at";

void check_equal_size(const ReportReader& map, const TablePlan& table) {
  if (table.kind == TableKind::kListing) map.fail(kAt, "expected no such key in a listing");
  if (!table.paper.empty()) map.fail(kAt, "expected no such key beside 'paper', which has no numbers at equal size");
}

// Every key of a table but what stands within `paired`.
TablePlan read_keys(ReportReader& map, std::set<std::string>& names) {
  TablePlan table;
  table.name = map.name("table", names);
  table.kind =
      map.word<TableKind>("kind", TableKind::kCells, {{"cells", TableKind::kCells}, {"listing", TableKind::kListing}},
                          "one aggregated number a cell, or the rows themselves");
  table.title = map.text("title", "", "what stands above the table");
  table.note = map.text("note", "", "what a reader has to know");
  table.measure = map.measure();
  table.rows = map.columns("rows", "columns of rows.csv whose values make the table's rows; cells need it");
  table.columns = map.columns(
      "columns", "columns of rows.csv whose values make the table's columns; in a listing those that are shown");
  table.where = map.where_map("where", "only rows with these values, or with all others");
  table.labels = map.labels("labels", "how readers see a value or the name of a column");
  table.digits = map.integer("digits", table.digits, {0, 12}, "after the point");
  table.interval = map.word<IntervalStyle>("interval", table.interval,
                                           {{"range", IntervalStyle::kRange},
                                            {"half_width", IntervalStyle::kHalfWidth},
                                            {"yes", IntervalStyle::kRange},
                                            {"no", IntervalStyle::kNone},
                                            {"true", IntervalStyle::kRange},
                                            {"false", IntervalStyle::kNone}},
                                           "95 % bootstrap over samples: [low, high], or ± half of it");
  table.better = map.word<Better>("better", Better::kUnknown, {{"lower", Better::kLower}, {"higher", Better::kHigher}},
                                  "which numbers are marked as best in a column");
  table.unranked = map.list("unranked", "row values that cannot be best: the full cache, an oracle");
  table.limit = map.integer("limit", table.limit, {1, 1000}, "of a listing: the largest values of a group of rows");
  table.kendall = map.flag("kendall", false, "a last row: Kendall's tau-b between our order of rows and the paper's");
  table.paper = map.text("paper", "", "a block of the spec's 'paper': its numbers stand beside ours");
  table.at = map.equal_size(kAt, "compares at these values of a metric with one number a sample: columns more");
  map.find(kPaired, "map", "differences to one value of a column, over the samples that both have");
  return table;
}

void check_table(const ReportReader& map, TablePlan& table) {
  check_measure(map, table.measure);
  if (table.kind == TableKind::kListing) {
    if (table.columns.empty()) map.fail_here("lacks the key 'columns'");
    if (!table.measure.ratio.empty()) map.fail("ratio", "expected 'metric' in a listing");
    return;
  }
  if (table.rows.empty()) map.fail_here("lacks the key 'rows'");
  for (const char* column : {"value", "unit", "text"}) {
    if (holds(table.columns, column)) {
      map.fail("columns", fmt::format("expected no '{}' unless kind is listing", column));
    }
  }
}

}  // namespace

TablePlan read_table(ReportReader map, const std::map<std::string, PaperBlock>& paper, std::set<std::string>& names) {
  TablePlan table = read_keys(map, names);
  map.finish();  // before what a kind lacks: a misspelt key is both
  check_table(map, table);
  const bool keyed = holds(table.rows, "metric") || holds(table.columns, "metric");
  if (table.kind == TableKind::kCells && table.measure.metrics.size() > 1 && !keyed) table.columns.push_back("metric");
  if (table.at) {
    check_equal_size(map, table);
    table.columns.push_back(table.at->metric);
  }
  if (map.has(kPaired)) {
    MapReader pair(map.document(), map.node()[kPaired], map.owner() + ": paired");
    table.paired = read_pairing(pair);
    pair.finish();
    check_pairing(map, table, pair, *table.paired);
    if (pair.has(kBeside)) table.paired->beside = beside_of(pair, table);
  }
  check_paper(map, table, paper);
  return table;
}

std::vector<KeySection> table_keys() {
  ReportReader table(MapReader::blank());
  std::set<std::string> names;
  read_keys(table, names);
  MapReader pair = MapReader::blank(), beside = MapReader::blank();
  read_pairing(pair);
  read_beside(beside);
  return {{"an entry of 'tables'", table.declared()},
          {"'paired' of a table", pair.declared()},
          {"'beside' of 'paired'", beside.declared()}};
}

}  // namespace kv
