#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/report/frame.h"
#include "harness/report/plan.h"
#include "harness/report/plot_kinds.h"

namespace kv {

// Rows as series of points over one column, or of a curve over a metric, a panel a facet: what curves and bars draw.
// Internal to the plots.

struct SeriesPoint {
  double x = 0;
  Estimate y{};
};

struct Series {
  Key key;
  std::string label;
  Style style;
  std::vector<SeriesPoint> points{};           // by ascending x
  std::optional<Estimate> constant{};          // the cell without x: a case that the axis does not concern
  std::vector<std::array<double, 2>> paper{};  // x and value
};

struct SeriesPanel {
  Key facet;
  std::vector<Series> series{};
};

// The places of an x column: numbers, or categories 0, 1, 2 ... in order of appearance.
struct XPlaces {
  bool categories = false;
  std::vector<std::string> labels{};
  std::vector<double> distinct{};  // numbers, ascending; none where x is a metric

  std::optional<double> at(const std::string& text) const;
};

struct SeriesChart {
  std::vector<SeriesPanel> panels{};
  XPlaces places{};
  std::string unit{}, x_unit{};
  std::vector<std::string> notes{};
  std::vector<LegendEntry> legend{};  // in the order of the cases, also where the first panel lacks a series
};

enum class XKind { kAsItIs, kCategories };

SeriesChart make_series_chart(const PlotPlan& plan, const RowTable& rows, const PaperValues& paper, XKind kind);

// What hollow markers are, below what is drawn, where there are any.
void explain_paper(const SeriesChart& chart, Picture& picture);

}  // namespace kv
