#include "harness/report/table_grid.h"

#include <algorithm>

#include "harness/report/cells.h"

namespace kv {
namespace {

// With fewer samples the bootstrap's interval is too narrow: it excludes zero far more often than one time in twenty.
constexpr int kFewestSamples = 8;

// The paper's value as a cell key, spelt as ours is (0.50 in the spec, 0.5 in the rows); absent where the table's
// `where` leaves it out.
std::optional<Key> paper_key(const TablePlan& plan, const PaperValue& value, const CellGrid& grid) {
  for (const auto& [column, filter] : plan.where) {
    const auto key = value.keys.find(column);
    if (key != value.keys.end() && !admits(filter, key->second)) return std::nullopt;
  }
  const auto spell = [&](const std::vector<std::string>& columns, const std::vector<Key>& known) {
    Key key;
    for (const std::string& column : columns) key.push_back(value.keys.at(column));
    const auto ours = std::find_if(known.begin(), known.end(), [&](const Key& k) {
      return std::equal(k.begin(), k.end(), key.begin(), same_value);
    });
    return ours == known.end() ? key : *ours;
  };
  Key key = spell(plan.rows, grid.rows);
  const Key column = spell(plan.columns, grid.columns);
  key.insert(key.end(), column.begin(), column.end());
  return key;
}

// Each ranked cell's difference from the best of its column, over the rows that both have.
void compare_with_best(const TablePlan& plan, const RowTable& rows, const Question& question, CellGrid& grid) {
  std::map<Key, Key> partners;
  for (const Key& column : grid.columns) {
    const Key* best = best_row(plan, grid, column);
    if (best == nullptr) continue;
    for (const Key& row : grid.rows) {
      const Cell* cell = find_cell(grid, row, column);
      if (row == *best || cell == nullptr || !cell->estimate || !is_ranked(plan, row)) continue;
      if (cell->estimate->clusters >= kFewestSamples) partners[join(row, column)] = join(*best, column);
    }
  }
  if (partners.empty()) return;
  Question differences = question;
  differences.intervals = true;
  differences.partners = std::move(partners);
  for (const auto& [key, cell] : collect(rows, differences).cells) {
    if (cell.estimate) grid.from_best[key] = *cell.estimate;
  }
}

}  // namespace

void add_new(std::vector<Key>& keys, Key key) {
  if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
}

CellGrid make_cell_grid(const TablePlan& plan, const PaperBlock* paper, const RowTable& rows) {
  std::vector<std::string> columns = plan.rows;
  columns.insert(columns.end(), plan.columns.begin(), plan.columns.end());
  CellGrid grid;
  const Question question{.measure = plan.measure,
                          .where = plan.where,
                          .columns = columns,
                          .intervals = plan.interval != IntervalStyle::kNone,
                          .at = plan.at,
                          .paired = plan.paired};
  grid.cells = collect(rows, question);
  const auto split = static_cast<std::ptrdiff_t>(plan.rows.size());
  for (const Key& key : grid.cells.keys) {
    add_new(grid.rows, Key(key.begin(), key.begin() + split));
    add_new(grid.columns, Key(key.begin() + split, key.end()));
  }
  compare_with_best(plan, rows, question, grid);
  if (paper == nullptr) return grid;
  const std::vector<Key> our_columns = grid.columns;
  for (const PaperValue& value : paper->values) {
    const auto key = paper_key(plan, value, grid);
    if (!key) continue;
    const Key column(key->begin() + split, key->end());
    // A column that only the paper has (its larger budgets) would be all blanks of ours.
    if (std::find(our_columns.begin(), our_columns.end(), column) == our_columns.end()) continue;
    add_new(grid.rows, Key(key->begin(), key->begin() + split));
    grid.paper[*key] = value;
  }
  return grid;
}

Key join(Key row, const Key& column) {
  row.insert(row.end(), column.begin(), column.end());
  return row;
}

const Cell* find_cell(const CellGrid& grid, const Key& row, const Key& column) {
  const auto place = grid.cells.cells.find(join(row, column));
  return place == grid.cells.cells.end() ? nullptr : &place->second;
}

const PaperValue* find_paper(const CellGrid& grid, const Key& row, const Key& column) {
  const auto place = grid.paper.find(join(row, column));
  return place == grid.paper.end() ? nullptr : &place->second;
}

bool has_paper(const CellGrid& grid, const Key& column) {
  return std::any_of(grid.rows.begin(), grid.rows.end(),
                     [&](const Key& row) { return find_paper(grid, row, column) != nullptr; });
}

bool is_ranked(const TablePlan& plan, const Key& row) {
  return std::none_of(row.begin(), row.end(), [&](const std::string& value) {
    return std::find(plan.unranked.begin(), plan.unranked.end(), value) != plan.unranked.end();
  });
}

const Key* best_row(const TablePlan& plan, const CellGrid& grid, const Key& column) {
  const Key* best = nullptr;
  if (plan.better == Better::kUnknown || plan.paired) return best;
  double best_value = 0;
  for (const Key& row : grid.rows) {
    const Cell* cell = find_cell(grid, row, column);
    if (cell == nullptr || !cell->estimate || !is_ranked(plan, row)) continue;
    const double value = cell->estimate->value;
    if (best != nullptr && (plan.better == Better::kLower ? value >= best_value : value <= best_value)) continue;
    best = &row;
    best_value = value;
  }
  return best;
}

bool excludes_zero(const Estimate& difference) {
  return difference.clusters >= kFewestSamples && difference.interval &&
         (difference.interval->low > 0 || difference.interval->high < 0);
}

std::vector<std::string> partner_names(const TablePlan& plan) {
  if (!plan.paired) return {};
  const std::string other = label_of(plan.labels, plan.paired->column, plan.paired->with);
  if (!plan.paired->beside) return {other};
  const std::string beside = label_of(plan.labels, plan.paired->beside->column, plan.paired->beside->with);
  return {other, beside, other + " with " + beside};
}

}  // namespace kv
