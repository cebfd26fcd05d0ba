#include "harness/report/leaders.h"

#include "harness/report/table_grid.h"

namespace kv {
namespace {

// The ranked row with the best number after the leader's.
const Key* second_row(const TablePlan& table, const CellGrid& grid, const Key& column, const Key& leader) {
  CellGrid others = grid;
  std::erase(others.rows, leader);
  const Key* second = best_row(table, others, column);
  if (second == nullptr) return nullptr;
  for (const Key& row : grid.rows) {
    if (row == *second) return &row;
  }
  return nullptr;
}

}  // namespace

std::vector<Leader> leaders_of(const TablePlan& table, const RowTable& rows) {
  std::vector<Leader> leaders;
  if (table.kind != TableKind::kCells || table.better == Better::kUnknown || table.paired) return leaders;
  const CellGrid grid = make_cell_grid(table, nullptr, rows);
  for (const Key& column : grid.columns) {
    const Key* best = best_row(table, grid, column);
    const Key* second = best == nullptr ? nullptr : second_row(table, grid, column, *best);
    if (second == nullptr) continue;
    Leader leader{
        .column = label_of(table.labels, table.columns, column),
        .name = label_of(table.labels, table.rows, *best),
        .runner_up = label_of(table.labels, table.rows, *second),
        .ahead = find_cell(grid, *second, column)->estimate->value - find_cell(grid, *best, column)->estimate->value};
    const auto paired = grid.from_best.find(join(*second, column));
    if (paired != grid.from_best.end()) {
      leader.ahead = paired->second.value;
      leader.interval = paired->second.interval;
    }
    leaders.push_back(std::move(leader));
  }
  return leaders;
}

}  // namespace kv
