#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "harness/report/table.h"
#include "harness/report/table_grid.h"

namespace kv {

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
        cells.push_back({.kind = TableCell::Kind::kLabel, .text = label_of(plan.labels, value)});
      for (std::size_t i = 0; i < readers.size(); ++i) {
        if (plan.columns[i] == "value" && row->value) {
          cells.push_back({.kind = TableCell::Kind::kNumber, .text = format_number(*row->value, plan.digits)});
        } else {
          cells.push_back({.kind = TableCell::Kind::kText, .text = label_of(plan.labels, readers[i](*row))});
        }
      }
      view.rows.push_back(std::move(cells));
    }
  }
  if (!plan.note.empty()) view.notes.push_back(plan.note);
  view.notes.push_back(fmt::format("The {} largest values{}.", plan.limit, plan.rows.empty() ? "" : " a group"));
  return view;
}

}  // namespace kv
