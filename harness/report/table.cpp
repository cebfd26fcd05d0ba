#include "harness/report/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "harness/report/cells.h"

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

// The cells of one table on a grid, ours and the paper's.
struct Grid {
  std::vector<Key> rows, columns;
  Cells cells;
  std::map<Key, PaperValue> paper;
};

void add_new(std::vector<Key>& keys, Key key) {
  if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
}

// The paper's value as a cell key, spelt as ours is (0.50 in the spec, 0.5 in the rows); absent where the table's
// `where` leaves it out.
std::optional<Key> paper_key(const TablePlan& plan, const PaperValue& value, const Grid& grid) {
  for (const auto& [column, accepted] : plan.where) {
    const auto key = value.keys.find(column);
    if (key == value.keys.end()) continue;
    const bool shown =
        std::any_of(accepted.begin(), accepted.end(), [&](const auto& text) { return same_value(text, key->second); });
    if (!shown) return std::nullopt;
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

Grid make_grid(const TablePlan& plan, const PaperBlock* paper, const RowTable& rows) {
  std::vector<std::string> columns = plan.rows;
  columns.insert(columns.end(), plan.columns.begin(), plan.columns.end());
  Grid grid;
  grid.cells = collect(rows, {.measure = plan.measure,
                              .where = plan.where,
                              .columns = columns,
                              .intervals = plan.interval != IntervalStyle::kNone,
                              .paired = plan.paired});
  const auto split = static_cast<std::ptrdiff_t>(plan.rows.size());
  for (const Key& key : grid.cells.keys) {
    add_new(grid.rows, Key(key.begin(), key.begin() + split));
    add_new(grid.columns, Key(key.begin() + split, key.end()));
  }
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

const Cell* find_cell(const Grid& grid, const Key& row, const Key& column) {
  const auto place = grid.cells.cells.find(join(row, column));
  return place == grid.cells.cells.end() ? nullptr : &place->second;
}

const PaperValue* find_paper(const Grid& grid, const Key& row, const Key& column) {
  const auto place = grid.paper.find(join(row, column));
  return place == grid.paper.end() ? nullptr : &place->second;
}

bool has_paper(const Grid& grid, const Key& column) {
  return std::any_of(grid.rows.begin(), grid.rows.end(),
                     [&](const Key& row) { return find_paper(grid, row, column) != nullptr; });
}

bool is_ranked(const TablePlan& plan, const Key& row) {
  return std::none_of(row.begin(), row.end(), [&](const std::string& value) {
    return std::find(plan.unranked.begin(), plan.unranked.end(), value) != plan.unranked.end();
  });
}

// As printed: two values that read the same are equally good.
std::optional<double> best_of(const TablePlan& plan, const Grid& grid, const Key& column) {
  std::optional<double> best;
  if (plan.better == Better::kUnknown || plan.paired) return best;
  for (const Key& row : grid.rows) {
    const Cell* cell = find_cell(grid, row, column);
    if (cell == nullptr || !cell->estimate || !is_ranked(plan, row)) continue;
    const double value = cell->estimate->value;
    if (!best || (plan.better == Better::kLower ? value < *best : value > *best)) best = value;
  }
  return best;
}

// Of fewer samples the bootstrap's interval is too narrow: it excludes zero far more often than one time in twenty.
constexpr int kFewestForBold = 8;

bool excludes_zero(const Estimate& difference) {
  return difference.samples >= kFewestForBold && difference.interval &&
         (difference.interval->low > 0 || difference.interval->high < 0);
}

// What differences are taken from.
std::string partner_name(const TablePlan& plan) {
  return plan.paired ? label_of(plan.labels, plan.paired->column, plan.paired->with) : "";
}

TableCell our_cell(const TablePlan& plan, const Cell* cell, const std::optional<double>& best, bool ranked) {
  if (cell == nullptr) return {.kind = Kind::kEmpty, .text = kMissing};
  if (!cell->estimate) {
    const auto& [own, partner] = std::tie(cell->skipped, cell->partner_skipped);
    if (own.samples > 0) return {.kind = Kind::kSkipped, .text = "skipped: " + own.reason};
    if (partner.samples > 0)
      return {.kind = Kind::kSkipped, .text = partner_name(plan) + " skipped: " + partner.reason};
    return {.kind = Kind::kEmpty, .text = kMissing};
  }
  const std::string text = format_number(cell->estimate->value, plan.digits);
  return {.kind = Kind::kNumber,
          .text = text,
          .interval = format_interval(*cell->estimate, plan),
          .bold = plan.paired ? excludes_zero(*cell->estimate)
                              : ranked && best && text == format_number(*best, plan.digits)};
}

std::vector<TableCell> kendall_row(const TablePlan& plan, const Grid& grid) {
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

std::string count_note(const Grid& grid) {
  int low = 0, high = 0;
  for (const auto& [key, cell] : grid.cells.cells) {
    if (!cell.estimate) continue;
    low = low == 0 ? cell.estimate->samples : std::min(low, cell.estimate->samples);
    high = std::max(high, cell.estimate->samples);
  }
  return low == high ? fmt::format("n = {}", low) : fmt::format("n = {} to {}", low, high);
}

// "mean", or what else is taken over samples.
std::string what_of(const Measure& measure) {
  if (!measure.ratio.empty()) return fmt::format("sum of {} over sum of {}", measure.ratio[0], measure.ratio[1]);
  return measure.aggregate == Aggregate::kMean     ? "mean"
         : measure.aggregate == Aggregate::kMedian ? "median"
                                                   : "largest";
}

std::string number_note(const TablePlan& plan, const Grid& grid) {
  const std::string what = what_of(plan.measure);
  const bool interval = plan.interval != IntervalStyle::kNone;
  if (!plan.paired) {
    return fmt::format("Each number: {} over samples, {}{}.", what, count_note(grid),
                       interval ? "; 95 % bootstrap interval" : "");
  }
  return fmt::format(
      "Each number: {} over samples less that of {} on the same rows of the same samples{}, {}{}.", what,
      partner_name(plan), plan.paired->relative ? ", in % of the latter" : "", count_note(grid),
      interval ? "; 95 % interval of the paired bootstrap, bold where it excludes zero (n of at least 8)" : "");
}

std::string better_note(const TablePlan& plan) {
  const bool lower = plan.better == Better::kLower;
  if (plan.paired) {
    return fmt::format("{} 0: {} is better.", lower ? "Above" : "Below", partner_name(plan));
  }
  std::string note = lower ? "\xe2\x86\x93 lower is better" : "\xe2\x86\x91 higher is better";
  if (!plan.unranked.empty()) note += fmt::format("; not ranked: {}", fmt::join(plan.unranked, ", "));
  return note + ".";
}

// Cells that are not shown, because nothing says which of several others each is to be compared with.
void add_unclear_note(const TablePlan& plan, const Grid& grid, TableView& view) {
  if (grid.cells.unclear.empty()) return;
  std::vector<std::string> columns = plan.rows, labels;
  columns.insert(columns.end(), plan.columns.begin(), plan.columns.end());
  for (const Key& key : grid.cells.unclear) labels.push_back(label_of(plan.labels, columns, key));
  view.notes.push_back(
      fmt::format("Left out, because each fits several cells of {}: {}.", partner_name(plan), fmt::join(labels, "; ")));
}

// A table without a row of ours.
std::string empty_note(const TablePlan& plan) {
  if (!plan.paired) return no_rows(plan.measure);
  return fmt::format("No row can be compared: {} = {} has no value for metric {} where another row has one.",
                     plan.paired->column, plan.paired->with,
                     fmt::join(plan.measure.ratio.empty() ? plan.measure.metrics : plan.measure.ratio, ", "));
}

std::string skipped_text(const Skipped& skipped, const std::string& of) {
  return skipped.samples == 0 ? "" : fmt::format("{} of {} skipped: {}.", skipped.samples, of, skipped.reason);
}

std::string unpaired_text(const Cell& cell, const std::string& partner) {
  const auto& [own, theirs, partly, unclear] = cell.unpaired;
  std::string text;
  if (own + theirs > 0) {
    text = fmt::format("{} pairs; {} of its samples and {} of {}'s have no partner.",
                       cell.estimate ? cell.estimate->samples : 0, own, theirs, partner);
  }
  if (partly > 0) {
    text += fmt::format("{}In {} of its pairs rows that one side lacks are left out.", text.empty() ? "" : " ", partly);
  }
  if (unclear > 0) {
    text += fmt::format("{}In {} of its samples rows are left out that fit several of {}'s.", text.empty() ? "" : " ",
                        unclear, partner);
  }
  return text;
}

// What its number lacks; of a cell that stands as skipped, that says enough.
std::string lack_text(const TablePlan& plan, const Cell& cell) {
  if (!cell.estimate && cell.skipped.samples + cell.partner_skipped.samples > 0) return "";
  const std::string partner = partner_name(plan);
  const bool alike = cell.skipped == cell.partner_skipped;
  const std::array<std::string, 3> texts = {skipped_text(cell.skipped, alike ? "the samples of both" : "the samples"),
                                            alike ? "" : skipped_text(cell.partner_skipped, partner + "'s samples"),
                                            unpaired_text(cell, partner)};
  std::string all;
  for (const std::string& text : texts) {
    if (!text.empty()) all += (all.empty() ? "" : " ") + text;
  }
  return all;
}

// Samples that numbers lack; once for a column where all of its numbers lack the same.
void add_lack_notes(const TablePlan& plan, const Grid& grid, const Key& column, TableView& view) {
  std::vector<std::pair<Key, std::string>> texts;
  for (const Key& row : grid.rows) {
    const Cell* cell = find_cell(grid, row, column);
    if (cell == nullptr) continue;
    std::string text = lack_text(plan, *cell);
    if (cell->estimate || !text.empty()) texts.emplace_back(row, std::move(text));
  }
  const bool alike = texts.size() > 1 && std::all_of(texts.begin(), texts.end(),
                                                     [&](const auto& t) { return t.second == texts[0].second; });
  if (alike && !texts[0].second.empty()) {
    const std::string label = plan.columns.empty() ? "Every row" : label_of(plan.labels, plan.columns, column);
    view.notes.push_back(label + ": " + texts[0].second);
    return;
  }
  std::vector<std::string> columns = plan.rows;
  columns.insert(columns.end(), plan.columns.begin(), plan.columns.end());
  for (const auto& [row, text] : texts) {
    if (!text.empty()) view.notes.push_back(label_of(plan.labels, columns, join(row, column)) + ": " + text);
  }
}

void add_notes(const TablePlan& plan, const PaperBlock* paper, const Grid& grid, TableView& view) {
  if (!plan.note.empty()) view.notes.push_back(plan.note);
  const bool any = std::any_of(grid.cells.cells.begin(), grid.cells.cells.end(),
                               [](const auto& entry) { return entry.second.estimate.has_value(); });
  if (!any) {
    if (grid.cells.unclear.empty()) view.notes.push_back(empty_note(plan));
    for (const Key& column : grid.columns) add_lack_notes(plan, grid, column, view);
    add_unclear_note(plan, grid, view);
    return;
  }
  view.notes.push_back(number_note(plan, grid));
  if (!grid.cells.averaged.empty()) {
    view.notes.push_back(
        fmt::format("Each number is taken over all values of: {}.", fmt::join(grid.cells.averaged, ", ")));
  }
  if (plan.better != Better::kUnknown) view.notes.push_back(better_note(plan));
  for (const Key& column : grid.columns) add_lack_notes(plan, grid, column, view);
  add_unclear_note(plan, grid, view);
  for (const std::string& reason : grid.cells.reasons) view.notes.push_back("Skipped: " + reason + ".");
  if (paper == nullptr) return;
  std::string source = "Paper: " + paper->table;
  if (!paper->page.empty()) source += ", page " + paper->page;
  if (!paper->caption.empty()) source += ", " + paper->caption;
  view.notes.push_back(source + ".");
}

std::string unit_of(const Grid& grid, const Key& column) {
  std::string unit;
  for (const Key& row : grid.rows) {
    const Cell* cell = find_cell(grid, row, column);
    if (cell == nullptr || !cell->estimate || cell->unit.empty()) continue;
    if (!unit.empty() && unit != cell->unit) return "";
    unit = cell->unit;
  }
  return unit;
}

TableView build_grid(const TablePlan& plan, const PaperBlock* paper, const RowTable& rows) {
  const Grid grid = make_grid(plan, paper, rows);
  TableView view{.name = plan.name, .title = plan.title.empty() ? plan.name : plan.title};
  if (grid.cells.keys.empty()) {
    if (grid.cells.unclear.empty()) view.notes.push_back(empty_note(plan));
    add_unclear_note(plan, grid, view);
    for (const std::string& reason : grid.cells.reasons) view.notes.push_back("Skipped: " + reason + ".");
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
  std::vector<std::optional<double>> best;
  for (const Key& column : grid.columns) best.push_back(best_of(plan, grid, column));
  for (const Key& key : grid.rows) {
    std::vector<TableCell> row;
    for (const std::string& value : key) {
      row.push_back({.kind = Kind::kLabel, .text = value.empty() ? kMissing : label_of(plan.labels, value)});
    }
    for (std::size_t i = 0; i < grid.columns.size(); ++i) {
      row.push_back(our_cell(plan, find_cell(grid, key, grid.columns[i]), best[i], is_ranked(plan, key)));
      if (!has_paper(grid, grid.columns[i])) continue;
      const PaperValue* value = find_paper(grid, key, grid.columns[i]);
      row.push_back({.kind = value ? Kind::kPaper : Kind::kEmpty, .text = value ? value->printed : kMissing});
    }
    view.rows.push_back(std::move(row));
  }
  if (plan.kendall) view.rows.push_back(kendall_row(plan, grid));
  add_notes(plan, paper, grid, view);
  return view;
}

TableView build_listing(const TablePlan& plan, const RowTable& rows) {
  TableView view{.name = plan.name, .title = plan.title.empty() ? plan.name : plan.title};
  const auto filter = row_filter(rows, plan.where);
  std::vector<std::function<std::string(const Row&)>> group_readers, readers;
  for (const std::string& column : plan.rows) group_readers.push_back(column_reader(rows, column));
  for (const std::string& column : plan.columns) readers.push_back(column_reader(rows, column));
  std::vector<Key> groups;
  std::map<Key, std::vector<const Row*>> members;
  for (const Row& row : rows.rows) {
    const auto& metrics = plan.measure.metrics;
    if (!row.skipped.empty() || std::find(metrics.begin(), metrics.end(), row.metric) == metrics.end()) continue;
    if (!filter(row)) continue;
    Key group;
    for (const auto& read : group_readers) group.push_back(read(row));
    add_new(groups, group);
    members[group].push_back(&row);
  }
  if (groups.empty()) {
    view.notes.push_back(no_rows(plan.measure));
    return view;
  }
  for (const auto* columns : {&plan.rows, &plan.columns}) {
    for (const std::string& column : *columns) view.header.push_back(label_of(plan.labels, column));
  }
  for (const Key& group : groups) {
    std::vector<const Row*>& list = members[group];
    // Rows without a value (text only) keep their order, after the others.
    std::stable_sort(list.begin(), list.end(), [](const Row* a, const Row* b) {
      return a->value.has_value() && (!b->value || *a->value > *b->value);
    });
    if (list.size() > static_cast<std::size_t>(plan.limit)) list.resize(static_cast<std::size_t>(plan.limit));
    for (const Row* row : list) {
      std::vector<TableCell> cells;
      for (const std::string& value : group)
        cells.push_back({.kind = Kind::kLabel, .text = label_of(plan.labels, value)});
      for (std::size_t i = 0; i < readers.size(); ++i) {
        if (plan.columns[i] == "value" && row->value) {
          cells.push_back({.kind = Kind::kNumber, .text = format_number(*row->value, plan.digits)});
        } else {
          cells.push_back({.kind = Kind::kText, .text = label_of(plan.labels, readers[i](*row))});
        }
      }
      view.rows.push_back(std::move(cells));
    }
  }
  if (!plan.note.empty()) view.notes.push_back(plan.note);
  view.notes.push_back(fmt::format("The {} largest values{}.", plan.limit, plan.rows.empty() ? "" : " a group"));
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
