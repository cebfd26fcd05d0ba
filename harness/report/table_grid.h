#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/report/cells.h"
#include "harness/report/plan.h"

namespace kv {

// The cells of one table on a grid, ours and the paper's; internal to the tables.
struct CellGrid {
  std::vector<Key> rows{}, columns{};
  Cells cells{};
  std::map<Key, PaperValue> paper{};
  // The difference of a cell from the best of its column, on the same samples; none for the best itself.
  std::map<Key, Estimate> from_best{};
};

CellGrid make_cell_grid(const TablePlan& plan, const PaperBlock* paper, const RowTable& rows);

// Nothing where the grid has no such cell.
const Cell* find_cell(const CellGrid& grid, const Key& row, const Key& column);
const PaperValue* find_paper(const CellGrid& grid, const Key& row, const Key& column);
bool has_paper(const CellGrid& grid, const Key& column);
Key join(Key row, const Key& column);
bool is_ranked(const TablePlan& plan, const Key& row);
// The row that is best by the point estimate; none where the plan does not say what is better.
const Key* best_row(const TablePlan& plan, const CellGrid& grid, const Key& column);
// Whether a paired interval says that there is a difference.
bool excludes_zero(const Estimate& difference);
// What the differences of a paired table are taken from, in the order of Cell::partners; nothing of another table.
std::vector<std::string> partner_names(const TablePlan& plan);

// Appends a key that is not there yet.
void add_new(std::vector<Key>& keys, Key key);

// The notes below a table, in the order in which they stand.
std::vector<std::string> table_notes(const TablePlan& plan, const PaperBlock* paper, const CellGrid& grid);
// Of a cell at an equal size that has no number: what sizes its samples have, or those of what it is compared with.
// Empty where that is not the reason.
std::string outside_text(const TablePlan& plan, const Cell& cell);
// Why there is no row.
std::vector<std::string> notes_without_rows(const TablePlan& plan, const CellGrid& grid);

}  // namespace kv
