#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "harness/rows.h"
#include "harness/spec/report_plan.h"

namespace kv {
namespace {

const Words<PlotKind>& plot_kinds() {
  static const Words<PlotKind> kKinds = {{"curve", PlotKind::kCurve},     {"bars", PlotKind::kBars},
                                         {"scatter", PlotKind::kScatter}, {"roofline", PlotKind::kRoofline},
                                         {"heatmap", PlotKind::kHeatmap}, {"image", PlotKind::kImage}};
  return kKinds;
}

std::string_view word_of(PlotKind kind) {
  return std::find_if(plot_kinds().begin(), plot_kinds().end(), [&](const auto& entry) { return entry.second == kind; })
      ->first;
}

// Keys that only some kinds have.
struct KindKey {
  const char* key;
  std::vector<PlotKind> kinds;
  bool required = false;
};

const std::vector<KindKey>& kind_keys() {
  using enum PlotKind;
  static const std::vector<KindKey> kKeys = {{"x", {kCurve, kBars, kScatter, kHeatmap}, true},
                                             {"y", {kHeatmap}, true},
                                             {"series", {kCurve, kBars, kScatter, kRoofline}},
                                             {"facet", {kCurve, kBars, kScatter, kHeatmap, kImage}},
                                             {"label", {kRoofline}},
                                             {"ceilings", {kRoofline}, true},
                                             {"x_scale", {kCurve, kScatter}},
                                             {"x_range", {kCurve, kScatter}},
                                             {"y_scale", {kCurve, kBars, kScatter}},
                                             {"y_range", {kCurve, kBars, kScatter}},
                                             {"reference", {kCurve, kBars, kScatter}},
                                             {"band", {kCurve, kBars, kScatter}},
                                             {"z_label", {kHeatmap, kImage}},
                                             {"z_scale", {kHeatmap, kImage}},
                                             {"z_range", {kHeatmap, kImage}}};
  return kKeys;
}

std::string kinds_text(const std::vector<PlotKind>& kinds) {
  std::vector<std::string_view> words;
  for (const PlotKind kind : kinds) words.push_back(word_of(kind));
  return fmt::format("{}", fmt::join(words, ", "));
}

// The meaning of a key, led by the kinds that have it.
std::string for_kinds(const char* key, std::string_view help) {
  const auto found = std::find_if(kind_keys().begin(), kind_keys().end(),
                                  [&](const KindKey& entry) { return std::string_view(entry.key) == key; });
  return fmt::format("{}{}: {}", found->required ? "required by " : "of ", kinds_text(found->kinds), help);
}

void read_scales(ReportReader& map, PlotPlan& plot) {
  const Words<Scale> scales = {{"linear", Scale::kLinear}, {"log2", Scale::kLog2}, {"log10", Scale::kLog10}};
  plot.x_label = map.text("x_label", "", "what stands below the x axis");
  plot.y_label = map.text("y_label", "", "what stands beside the y axis");
  plot.z_label = map.text("z_label", "", for_kinds("z_label", "what stands beside the colours"));
  plot.x_scale = map.word<Scale>("x_scale", Scale::kLinear, scales, for_kinds("x_scale", "how x grows"));
  plot.y_scale = map.word<Scale>("y_scale", Scale::kLinear, scales, for_kinds("y_scale", "how y grows"));
  plot.z_scale = map.word<Scale>("z_scale", Scale::kLinear, scales, for_kinds("z_scale", "how colours grow"));
  plot.x_range = map.range("x_range", for_kinds("x_range", "what of x is shown"));
  plot.y_range = map.range("y_range", for_kinds("y_range", "what of y is shown"));
  plot.z_range = map.range("z_range", for_kinds("z_range", "what of the colours is shown"));
}

ReferenceLine read_line(MapReader& map) {
  ReferenceLine line;
  line.x = map.number("x", "where it stands along the x axis; not in bars");
  line.y = map.number("y", "instead: its value of what is measured, which bars have along x");
  line.label = map.text("label", "", "what is written beside it");
  return line;
}

// A number alone is a value of what is measured.
std::vector<ReferenceLine> read_lines(ReportReader& map) {
  constexpr const char* kKey = "reference";
  const YAML::Node value = map.find(kKey, "a number, a map (below), or a list of them",
                                    for_kinds(kKey, "dashed lines that values are compared with"));
  std::vector<ReferenceLine> lines;
  for (const YAML::Node& item : items_of(value)) {
    if (!item.IsMap()) {
      const std::optional<double> number = parse_number(map.scalar(item, kKey));
      if (!number) map.fail_at(item, kKey, "expected a number, or a map with x or y");
      lines.push_back({.y = number});
      continue;
    }
    MapReader line(map.document(), item, map.owner() + ": reference");
    lines.push_back(read_line(line));
    line.finish();
    if (line.has("x") == line.has("y")) line.fail_here("expected one of the keys 'x' and 'y'");
  }
  return lines;
}

PlotPlan read_keys(ReportReader& map, std::set<std::string>& names) {
  PlotPlan plot;
  plot.name = map.name("plot", names);
  plot.kind = map.required_word<PlotKind>("kind", plot_kinds(), "what is drawn");
  plot.title = map.text("title", "", "what stands above the plot");
  plot.note = map.text("note", "", "what a reader has to know");
  plot.measure = map.measure();
  plot.x = map.column_or_number(
      "x", for_kinds("x",
                     "the column along the x axis, numeric in a curve; or, of curve and scatter, a metric with one "
                     "number a sample, whose mean is where a case stands"));
  plot.measured_x = !plot.x.empty() && !map.is_column(plot.x);
  plot.y = map.column("y", for_kinds("y", "the column along the y axis"));
  plot.series = map.columns("series", for_kinds("series", "a line, bar or marker for each of their values"));
  plot.facet = map.columns("facet", for_kinds("facet", "a panel for each of their values"));
  plot.label = map.columns("label", for_kinds("label", "what is written beside a point"));
  plot.ceilings = map.list("ceilings", for_kinds("ceilings", "two metrics, [bytes per second, work per second]"));
  plot.where = map.where_map("where", "only rows with these values, or with all others");
  plot.labels = map.labels("labels", "how readers see a value or the name of a column");
  read_scales(map, plot);
  plot.references = read_lines(map);
  plot.band = map.flag("band", true, for_kinds("band", "95 % bootstrap intervals over samples"));
  return plot;
}

void check_keys(const ReportReader& map, const PlotPlan& plot) {
  for (const KindKey& entry : kind_keys()) {
    const bool belongs = std::find(entry.kinds.begin(), entry.kinds.end(), plot.kind) != entry.kinds.end();
    if (!belongs && map.has(entry.key)) {
      map.fail(entry.key, fmt::format("belongs to kind {}, expected no such key in kind {}", kinds_text(entry.kinds),
                                      word_of(plot.kind)));
    }
    if (belongs && entry.required && !map.has(entry.key)) map.fail_here(fmt::format("lacks the key '{}'", entry.key));
  }
}

void check_metrics(const ReportReader& map, const PlotPlan& plot) {
  check_measure(map, plot.measure);
  const size_t metrics = plot.measure.metrics.size();
  const bool keyed = std::count(plot.series.begin(), plot.series.end(), "metric") +
                         std::count(plot.facet.begin(), plot.facet.end(), "metric") + (plot.x == "metric") +
                         (plot.y == "metric") >
                     0;
  const bool roofline = plot.kind == PlotKind::kRoofline;
  if (roofline && metrics != 2) {
    map.fail(metrics == 0 ? "ratio" : "metric",
             "expected two metrics, [work per byte, work per second], in a roofline");
  }
  if (roofline && plot.ceilings.size() != 2) {
    map.fail("ceilings", "expected two metrics, [bytes per second, work per second]");
  }
  if (plot.kind == PlotKind::kImage && metrics == 0) map.fail("ratio", "expected 'metric' in an image");
  if (!roofline && metrics > 1 && !keyed) {
    map.fail("metric", "expected one metric, or 'metric' among x, series or facet");
  }
  if (!plot.measure.ratio.empty() && keyed) {
    map.fail("ratio", "expected no 'metric' among x, y, series and facet beside a ratio");
  }
}

void check_x(const ReportReader& map, const PlotPlan& plot) {
  if (plot.kind == PlotKind::kScatter && !plot.measured_x) {
    map.fail("x", "expected a metric with one number a sample in a scatter plot");
  }
  if (plot.measured_x && plot.kind != PlotKind::kScatter && plot.kind != PlotKind::kCurve) {
    map.fail("x", fmt::format("expected a column in kind {}", word_of(plot.kind)));
  }
}

// A place that an axis does not have would be drawn at its end.
void check_lines(const ReportReader& map, const PlotPlan& plot) {
  for (const ReferenceLine& line : plot.references) {
    if (line.x && plot.kind == PlotKind::kBars) map.fail("reference", "expected y, not x, in bars");
    const Scale scale = line.x ? plot.x_scale : plot.y_scale;
    if (scale != Scale::kLinear && (line.x ? *line.x : *line.y) <= 0) {
      map.fail("reference", "expected a number above 0 on a logarithmic axis");
    }
  }
}

}  // namespace

PlotPlan read_plot(ReportReader map, std::set<std::string>& names) {
  PlotPlan plot = read_keys(map, names);
  map.finish();  // before what a kind lacks: a misspelt key is both
  check_keys(map, plot);
  check_metrics(map, plot);
  check_x(map, plot);
  check_lines(map, plot);
  if (plot.x.empty()) plot.x = "x";
  if (plot.kind == PlotKind::kRoofline) plot.x_scale = plot.y_scale = Scale::kLog10;
  return plot;
}

std::vector<KeySection> plot_keys() {
  ReportReader map(MapReader::blank());
  std::set<std::string> names;
  read_keys(map, names);
  MapReader line = MapReader::blank();
  read_line(line);
  return {{"an entry of 'plots'", map.declared()}, {"an entry of 'reference' of a plot", line.declared()}};
}

}  // namespace kv
