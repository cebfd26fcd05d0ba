#include "harness/report/plot_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace kv {

void note_samples(const PlotPlan& plan, const Cells& cells, std::string_view spread, std::vector<std::string>& notes) {
  if (!plan.note.empty()) notes.push_back(plan.note);
  const Counts counts = counts_of(cells);
  if (counts.samples.high == 0) return;
  std::string note = fmt::format("n = {} samples{}", to_text(counts.samples), of_documents(counts));
  if (!spread.empty() && counts.clusters.high > 1) {
    const std::string name =
        fmt::format("{}: 95 % bootstrap interval over {}", spread, counts.clustered ? "documents" : "samples");
    note += "; " + interval_note(counts, name);
  }
  notes.push_back(note + ".");
  if (!cells.averaged.empty()) {
    notes.push_back(fmt::format("Each point is taken over all values of: {}.", fmt::join(cells.averaged, ", ")));
  }
  std::vector<std::pair<std::string, int>> reasons;
  for (const Key& key : cells.keys) {
    const Cell& cell = cells.cells.at(key);
    if (cell.skipped.samples == 0) continue;
    ++find_or_add(reasons, [&](const auto& entry) { return entry.first == cell.skipped.reason; },
                  {cell.skipped.reason, 0})
          .second;
  }
  for (const auto& [reason, count] : reasons) {
    notes.push_back(fmt::format("Skipped in {} of {} points: {}.", count, cells.keys.size(), reason));
  }
  for (const std::string& reason : cells.reasons) notes.push_back("Skipped: " + reason + ".");
}

std::vector<std::string> column_values(const PlotPlan& plan, const RowTable& rows, const std::string& column) {
  const auto read = column_reader(rows, column);
  const auto filter = row_filter(rows, plan.where);
  const auto& metrics = plan.measure.ratio.empty() ? plan.measure.metrics : plan.measure.ratio;
  std::vector<std::string> order;
  std::map<std::string, bool> has_value;
  for (const Row& row : rows.rows) {
    const bool plotted = std::find(metrics.begin(), metrics.end(), row.metric) != metrics.end();
    const bool skipped = !row.skipped.empty() && (plotted || row.metric.empty());
    if (!(plotted || skipped) || !filter(row)) continue;
    std::string value = read(row);
    const auto [place, added] = has_value.try_emplace(value, false);
    place->second = place->second || !skipped;
    if (added) order.push_back(std::move(value));
  }
  std::erase_if(order, [&](const std::string& value) { return !has_value.at(value); });
  return order;
}

std::string axis_name(const PlotPlan& plan, const std::string& column) {
  std::string name = label_of(plan.labels, column);
  if (name == column) std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string default_label(const PlotPlan& plan, const std::string& given, const std::string& unit) {
  if (!given.empty()) return given;
  const Measure& measure = plan.measure;
  std::string name = "value";
  if (!measure.ratio.empty()) name = axis_name(plan, measure.ratio[0]) + " / " + axis_name(plan, measure.ratio[1]);
  if (measure.metrics.size() == 1) name = axis_name(plan, measure.metrics[0]);
  return unit.empty() ? name : name + " (" + unit + ")";
}

std::string x_label_of(const PlotPlan& plan, const std::string& unit) {
  if (!plan.x_label.empty()) return plan.x_label;
  return unit.empty() ? axis_name(plan, plan.x) : fmt::format("{} ({})", axis_name(plan, plan.x), unit);
}

std::vector<std::string> sorted_labels(std::vector<std::string> labels) {
  const bool numbers = std::all_of(labels.begin(), labels.end(), [](const auto& label) { return parse_number(label); });
  if (numbers) {
    std::stable_sort(labels.begin(), labels.end(),
                     [](const auto& a, const auto& b) { return *parse_number(a) < *parse_number(b); });
  }
  return labels;
}

}  // namespace kv
