#include "harness/report/series_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "harness/report/case_points.h"
#include "harness/report/plot_parts.h"
#include "harness/report/reference_lines.h"

namespace kv {
namespace {

constexpr int kMaxPoints = 120;
constexpr int kBins = 100;

XPlaces find_places(const std::vector<std::string>& values, XKind kind) {
  XPlaces places{.categories = kind == XKind::kCategories};
  for (const std::string& value : values) {
    if (value.empty() && !places.categories) continue;
    if (std::find(places.labels.begin(), places.labels.end(), value) == places.labels.end())
      places.labels.push_back(value);
  }
  places.categories = places.categories || std::any_of(places.labels.begin(), places.labels.end(),
                                                       [](const std::string& label) { return !parse_number(label); });
  if (places.categories) return places;
  for (const std::string& label : places.labels) places.distinct.push_back(*parse_number(label));
  std::sort(places.distinct.begin(), places.distinct.end());
  return places;
}

// Bins for a curve with more points than a reader can tell apart; equal widths on the axis as it is drawn.
std::function<std::string(const std::string&)> make_bins(const PlotPlan& plan, const XPlaces& places) {
  if (places.categories || static_cast<int>(places.distinct.size()) <= kMaxPoints) return {};
  const bool log = plan.x_scale != Scale::kLinear && places.distinct.front() > 0;
  const auto warp = [log](double x) { return log ? std::log(x) : x; };
  const double low = warp(places.distinct.front());
  const double width = (warp(places.distinct.back()) - low) / kBins;
  return [=](const std::string& text) {
    const auto x = parse_number(text);
    if (!x) return text;
    const double bin = std::min(std::floor((warp(*x) - low) / width), static_cast<double>(kBins - 1));
    const double center = low + (bin + 0.5) * width;
    return fmt::format("{:.6g}", log ? std::exp(center) : center);
  };
}

bool same_key(const Key& a, const Key& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_value); }

Key key_of(const PaperValue& value, const std::vector<std::string>& columns) {
  Key key;
  for (const std::string& column : columns) key.push_back(value.keys.at(column));
  return key;
}

void place_paper(const PlotPlan& plan, const PaperValues& paper, SeriesChart& chart) {
  for (const PaperValue& value : paper) {
    const auto x = chart.places.at(value.keys.at(plan.x));
    if (!x) continue;
    for (SeriesPanel& panel : chart.panels) {
      if (!same_key(panel.facet, key_of(value, plan.facet))) continue;
      for (Series& series : panel.series) {
        if (same_key(series.key, key_of(value, plan.series))) series.paper.push_back({*x, value.value});
      }
    }
  }
}

// Only what was drawn.
void drop_unused(SeriesChart& chart) {
  std::erase_if(chart.legend, [&](const LegendEntry& entry) {
    return entry.label.empty() || std::none_of(chart.panels.begin(), chart.panels.end(), [&](const SeriesPanel& panel) {
             return std::any_of(panel.series.begin(), panel.series.end(),
                                [&](const Series& series) { return series.label == entry.label; });
           });
  });
}

// Panels, series and the legend as cells come.
class ChartMaker {
 public:
  explicit ChartMaker(const PlotPlan& plan) : plan_(plan), styles_(plan.series) {}

  SeriesChart& chart() { return chart_; }

  void name(const Key& series) {
    const LegendEntry entry{label_of(plan_.labels, plan_.series, series), styles_.of(series)};
    find_or_add(
        chart_.legend, [&](const LegendEntry& e) { return e.label == entry.label; }, entry);
  }

  Series& series(const Key& facet, const Key& key) {
    const std::string label = label_of(plan_.labels, plan_.series, key);
    SeriesPanel& panel = find_or_add(
        chart_.panels, [&](const SeriesPanel& p) { return p.facet == facet; }, SeriesPanel{facet});
    return find_or_add(
        panel.series, [&](const Series& s) { return s.label == label; }, Series{key, label, styles_.of(key)});
  }

  SeriesChart finish() {
    for (SeriesPanel& panel : chart_.panels) {
      for (Series& series : panel.series) {
        std::stable_sort(series.points.begin(), series.points.end(),
                         [](const SeriesPoint& a, const SeriesPoint& b) { return a.x < b.x; });
      }
    }
    drop_unused(chart_);
    return std::move(chart_);
  }

 private:
  const PlotPlan& plan_;
  SeriesStyles styles_;
  SeriesChart chart_;
};

void add_over_column(const PlotPlan& plan, const RowTable& rows, XKind kind, ChartMaker& maker) {
  SeriesChart& chart = maker.chart();
  std::vector<std::string> columns = {plan.x};
  columns.insert(columns.end(), plan.facet.begin(), plan.facet.end());
  columns.insert(columns.end(), plan.series.begin(), plan.series.end());
  chart.places = find_places(column_values(plan, rows, plan.x), kind);
  const auto bins = make_bins(plan, chart.places);
  const Cells cells = collect(
      rows, {.measure = plan.measure, .where = plan.where, .columns = columns, .intervals = plan.band, .first = bins});
  const auto facet_end = 1 + static_cast<std::ptrdiff_t>(plan.facet.size());
  for (const Key& key : cells.keys) {
    const Cell& cell = cells.cells.at(key);
    const Key series_key(key.begin() + facet_end, key.end());
    maker.name(series_key);
    if (!cell.estimate) continue;
    if (!cell.unit.empty()) chart.unit = cell.unit;
    Series& series = maker.series(Key(key.begin() + 1, key.begin() + facet_end), series_key);
    const auto x = chart.places.at(key[0]);
    if (x && !(key[0].empty() && !chart.places.categories)) {
      series.points.push_back({.x = *x, .y = *cell.estimate});
    } else {
      series.constant = cell.estimate;
    }
  }
  note_samples(plan, cells, plan.kind == PlotKind::kBars ? "whiskers" : "band", chart.notes);
  if (bins) chart.notes.push_back(fmt::format("{} points averaged in {} bins.", chart.places.distinct.size(), kBins));
}

// A point a policy and point of the axes; texts of several entries of the data are one case's. Cases that an axis does
// not change, though they have its values, are one point.
void add_over_metric(const PlotPlan& plan, const RowTable& rows, ChartMaker& maker) {
  SeriesChart& chart = maker.chart();
  const CasePoints cases = collect_case_points(plan, rows, {"policy"});
  chart.unit = cases.y_unit;
  chart.x_unit = cases.x_unit;
  for (const CasePoint& point : cases.points) {
    maker.name(point.series);
    auto& points = maker.series(point.facet, point.series).points;
    const bool known = std::any_of(points.begin(), points.end(), [&](const SeriesPoint& other) {
      return other.x == point.x.value && other.y.value == point.y.value;
    });
    if (!known) points.push_back({.x = point.x.value, .y = point.y});
  }
  note_samples(plan, cases.y, "band", chart.notes);
  chart.notes.insert(chart.notes.end(), cases.notes.begin(), cases.notes.end());
}

bool has_paper(const SeriesChart& chart) {
  return std::any_of(chart.panels.begin(), chart.panels.end(), [](const SeriesPanel& panel) {
    return std::any_of(panel.series.begin(), panel.series.end(), [](const Series& one) { return !one.paper.empty(); });
  });
}

}  // namespace

std::optional<double> XPlaces::at(const std::string& text) const {
  if (!categories) return parse_number(text);
  const auto place =
      std::find_if(labels.begin(), labels.end(), [&](const std::string& label) { return same_value(label, text); });
  if (place == labels.end()) return std::nullopt;
  return static_cast<double>(place - labels.begin());
}

SeriesChart make_series_chart(const PlotPlan& plan, const RowTable& rows, const PaperValues& paper, XKind kind) {
  ChartMaker maker(plan);
  if (plan.measured_x) {
    add_over_metric(plan, rows, maker);
  } else {
    add_over_column(plan, rows, kind, maker);
  }
  SeriesChart chart = maker.finish();
  place_paper(plan, paper, chart);
  note_reference_lines(plan, chart.notes);
  if (has_paper(chart)) chart.notes.emplace_back("Ringed and hollow: the paper's number.");
  return chart;
}

void explain_paper(const SeriesChart& chart, Picture& picture) {
  if (has_paper(chart)) draw_legend(picture, {{"the paper's", {.hollow = true}}}, LegendMark::kPoint);
}

}  // namespace kv
