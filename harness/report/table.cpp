#include "harness/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/report/table_grid.h"

namespace kv {
namespace {

constexpr const char* kMissing = "\xe2\x80\x93";  // en dash

using Kind = TableCell::Kind;

std::string format_interval(const Estimate& estimate, const TablePlan& plan) {
  if (!estimate.interval || plan.interval == IntervalStyle::kNone) return "";
  const auto [low, high] = *estimate.interval;
  if (low == high) return "";  // samples without any spread
  if (plan.interval == IntervalStyle::kHalfWidth) {
    return "\xc2\xb1 " + format_number((high - low) / 2, plan.digits);
  }
  return "[" + format_number(low, plan.digits) + ", " + format_number(high, plan.digits) + "]";
}

// Of a cell without a number: why it, or else one that it is compared with, was skipped.
std::string why_skipped(const TablePlan& plan, const Cell& cell) {
  if (cell.skipped.samples > 0) return "skipped: " + cell.skipped.reason;
  const std::vector<std::string> names = partner_names(plan);
  for (std::size_t i = 0; i < cell.partners.size(); ++i) {
    const Skipped& skipped = cell.partners[i].skipped;
    if (skipped.samples > 0) return names[i] + " skipped: " + skipped.reason;
  }
  return "";
}

TableCell our_cell(const TablePlan& plan, const Cell* cell, const Cell* best, const Estimate* from_best, bool ranked) {
  if (cell == nullptr) return {.kind = Kind::kEmpty, .text = kMissing};
  if (!cell->estimate) {
    const std::string outside = outside_text(plan, *cell);
    if (!outside.empty()) return {.kind = Kind::kSkipped, .text = outside};
    const std::string skipped = why_skipped(plan, *cell);
    if (!skipped.empty()) return {.kind = Kind::kSkipped, .text = skipped};
    return {.kind = Kind::kEmpty, .text = kMissing};
  }
  const std::string text = format_number(cell->estimate->value, plan.digits);
  const Estimate* difference = plan.paired ? &*cell->estimate : from_best;
  // As printed: two values that read the same are equally good.
  return {.kind = Kind::kNumber,
          .text = text,
          .interval = format_interval(*cell->estimate, plan),
          .bold = ranked && best != nullptr && text == format_number(best->estimate->value, plan.digits),
          .differs = difference != nullptr && excludes_zero(*difference)};
}

std::vector<TableCell> kendall_row(const TablePlan& plan, const CellGrid& grid) {
  std::vector<TableCell> row(plan.rows.size());
  row[0] = {.kind = Kind::kLabel, .text = "Kendall's \xcf\x84 with the paper"};
  for (const Key& column : grid.columns) {
    std::vector<double> ours, theirs;
    for (const Key& key : grid.rows) {
      const Cell* cell = find_cell(grid, key, column);
      const PaperValue* paper = find_paper(grid, key, column);
      // An oracle's first place is no achievement of an ordering.
      if (cell == nullptr || !cell->estimate || paper == nullptr || !is_ranked(plan, key)) continue;
      ours.push_back(cell->estimate->value);
      theirs.push_back(paper->value);
    }
    const auto tau = kendall_tau_b(ours, theirs);
    if (tau) {
      row.push_back({.kind = Kind::kNumber, .text = fmt::format("{:.2f}", *tau)});
    } else {
      row.push_back({.kind = Kind::kEmpty, .text = kMissing});
    }
    if (has_paper(grid, column)) row.emplace_back();
  }
  return row;
}

std::string unit_of(const CellGrid& grid, const Key& column) {
  std::string unit;
  for (const Key& row : grid.rows) {
    const Cell* cell = find_cell(grid, row, column);
    if (cell == nullptr || !cell->estimate || cell->unit.empty()) continue;
    if (!unit.empty() && unit != cell->unit) return "";
    unit = cell->unit;
  }
  return unit;
}

// Columns whose keys begin alike share a head, and so do a column and the paper's beside it.
void add_head_groups(const TablePlan& plan, const CellGrid& grid, TableView& view) {
  std::vector<HeadGroup> groups;
  std::vector<std::string> names(plan.rows.size());
  bool shared = false;
  for (const Key& column : grid.columns) {
    const std::size_t width = has_paper(grid, column) ? 2 : 1, depth = plan.columns.size();
    const std::size_t first = names.size();
    const bool by_key = depth > 1;
    const std::vector<std::string> outer(plan.columns.begin(), plan.columns.end() - (by_key ? 1 : 0));
    const Key outer_key(column.begin(), column.end() - (by_key ? 1 : 0));
    const std::string text = depth == 0 ? view.header[first] : label_of(plan.labels, outer, outer_key);
    std::string name = by_key ? label_of(plan.labels, plan.columns.back(), column.back()) : "ours";
    const std::string unit = unit_of(grid, column);
    if (!unit.empty()) name += " (" + unit + ")";
    if (by_key && !groups.empty() && groups.back().text == text) {
      groups.back().columns += width;
      shared = true;
    } else {
      groups.push_back({.text = text, .first = first, .columns = width});
      shared = shared || width > 1;
    }
    names.push_back(name);
    if (width == 2) names.emplace_back("paper");
  }
  if (!shared) return;
  view.groups = std::move(groups);
  view.names = std::move(names);
}

TableView build_grid(const TablePlan& plan, const PaperBlock* paper, const RowTable& rows) {
  const CellGrid grid = make_cell_grid(plan, paper, rows);
  TableView view{.name = plan.name, .title = plan.title.empty() ? plan.name : plan.title};
  if (grid.cells.keys.empty()) {
    view.notes = notes_without_rows(plan, grid);
    return view;
  }
  for (const std::string& column : plan.rows) view.header.push_back(label_of(plan.labels, column));
  for (const Key& column : grid.columns) {
    std::string name = plan.columns.empty()
                           ? label_of(plan.labels, plan.measure.ratio.empty() ? plan.measure.metrics[0] : "ratio")
                           : label_of(plan.labels, plan.columns, column);
    const std::string unit = unit_of(grid, column);
    if (!unit.empty()) name += " (" + unit + ")";
    view.header.push_back(std::move(name));
    if (has_paper(grid, column)) view.header.push_back("paper");
  }
  add_head_groups(plan, grid, view);
  std::vector<const Cell*> best;
  for (const Key& column : grid.columns) {
    const Key* row = best_row(plan, grid, column);
    best.push_back(row == nullptr ? nullptr : find_cell(grid, *row, column));
  }
  for (const Key& key : grid.rows) {
    std::vector<TableCell> row;
    for (const std::string& value : key) {
      row.push_back({.kind = Kind::kLabel, .text = value.empty() ? kMissing : label_of(plan.labels, value)});
    }
    for (std::size_t i = 0; i < grid.columns.size(); ++i) {
      const auto from_best = grid.from_best.find(join(key, grid.columns[i]));
      row.push_back(our_cell(plan, find_cell(grid, key, grid.columns[i]), best[i],
                             from_best == grid.from_best.end() ? nullptr : &from_best->second, is_ranked(plan, key)));
      if (!has_paper(grid, grid.columns[i])) continue;
      const PaperValue* value = find_paper(grid, key, grid.columns[i]);
      row.push_back({.kind = value ? Kind::kPaper : Kind::kEmpty, .text = value ? value->printed : kMissing});
    }
    view.rows.push_back(std::move(row));
  }
  if (plan.kendall) view.rows.push_back(kendall_row(plan, grid));
  view.notes = table_notes(plan, paper, grid);
  return view;
}

}  // namespace

std::string format_number(double value, int digits) {
  const double size = std::abs(value);
  if (size >= 1e5 && size < 1e9) digits = 0;
  if (size >= 1e9 || (size > 0 && size < 0.5 * std::pow(10.0, -digits)))
    return fmt::format("{:.{}e}", value, std::max(digits - 1, 0));
  const std::string text = fmt::format("{:.{}f}", value, digits);
  return text.find_first_not_of("-0.") == text.npos && text.front() == '-' ? text.substr(1) : text;
}

TableView build_table(const TablePlan& plan, const std::map<std::string, PaperBlock>& paper, const RowTable& rows) {
  if (plan.kind == TableKind::kListing) return build_listing(plan, rows);
  const auto block = paper.find(plan.paper);
  return build_grid(plan, block == paper.end() ? nullptr : &block->second, rows);
}

}  // namespace kv
