#include "harness/report/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "harness/rows.h"
#include "kernels/error.h"

namespace kv {
namespace {

struct Context {
  std::span<const std::string> axes;
  std::string_view file;
};

[[noreturn]] void fail(const Context& context, const YAML::Mark& mark, const std::string& what) {
  throw UserError(fmt::format("{}:{}:{}: {}", context.file, mark.line + 1, mark.column + 1, what));
}

template <typename Value>
using Words = std::vector<std::pair<std::string_view, Value>>;

// One YAML map. Every key that is read is marked; `finish` refuses the others.
class Map {
 public:
  Map(const Context& context, const YAML::Node& node, std::string owner)
      : context_(context), node_(node), owner_(std::move(owner)) {
    if (!node_.IsMap()) fail(context_, node_.Mark(), fmt::format("{}: expected a map of keys and values", owner_));
  }

  YAML::Node find(const std::string& key) {
    known_.push_back(key);
    const YAML::Node& node = node_;  // const: reading a missing key must not add it
    return node[key];
  }

  YAML::Node require(const std::string& key) {
    const YAML::Node value = find(key);
    if (!value.IsDefined()) fail_here(fmt::format("{}: lacks the key '{}'", owner_, key));
    return value;
  }

  std::string text(const std::string& key) {
    const YAML::Node value = find(key);
    return value.IsDefined() ? scalar(value, key) : std::string();
  }

  std::vector<std::string> list(const std::string& key) {
    const YAML::Node value = find(key);
    if (!value.IsDefined()) return {};
    return values(value, key);
  }

  int integer(const std::string& key, int otherwise, int low, int high) {
    const YAML::Node value = find(key);
    if (!value.IsDefined()) return otherwise;
    const std::optional<double> number = parse_number(scalar(value, key));
    if (!number || *number < low || *number > high || *number != static_cast<int>(*number)) {
      fail_at(value, key, fmt::format("an integer from {} to {}", low, high));
    }
    return static_cast<int>(*number);
  }

  bool flag(const std::string& key, bool otherwise) {
    return word<bool>(key, otherwise, {{"yes", true}, {"no", false}, {"true", true}, {"false", false}});
  }

  template <typename Value>
  Value word(const std::string& key, Value otherwise, const Words<Value>& words) {
    const YAML::Node value = find(key);
    if (!value.IsDefined()) return otherwise;
    const std::string got = scalar(value, key);
    std::vector<std::string_view> accepted;
    for (const auto& [name, meaning] : words) {
      if (name == got) return meaning;
      accepted.push_back(name);
    }
    fail_at(value, key, fmt::format("one of {}", fmt::join(accepted, ", ")));
  }

  std::optional<std::array<double, 2>> range(const std::string& key) {
    const YAML::Node value = find(key);
    if (!value.IsDefined()) return std::nullopt;
    const std::vector<std::string> ends = values(value, key);
    const auto low = ends.size() == 2 ? parse_number(ends[0]) : std::nullopt;
    const auto high = ends.size() == 2 ? parse_number(ends[1]) : std::nullopt;
    if (!low || !high || *low >= *high) fail_at(value, key, "[low, high] with low < high");
    return std::array<double, 2>{*low, *high};
  }

  std::vector<std::string> columns(const std::string& key) {
    std::vector<std::string> names = list(key);
    for (const std::string& name : names) check_column(find(key), key, name);
    return names;
  }

  std::string column(const std::string& key) {
    const YAML::Node value = require(key);
    std::string name = scalar(value, key);
    check_column(value, key, name);
    return name;
  }

  Where where(const std::string& key) {
    Where out;
    const YAML::Node map = find(key);
    if (!map.IsDefined()) return out;
    if (!map.IsMap()) fail_at(map, key, "a map of column: value or column: [values]");
    for (const auto& entry : map) {
      const std::string name = scalar(entry.first, key);
      check_column(entry.first, key, name);
      out[name] = values(entry.second, name);
    }
    return out;
  }

  Labels labels(const std::string& key) {
    Labels out;
    const YAML::Node map = find(key);
    if (!map.IsDefined()) return out;
    if (!map.IsMap()) fail_at(map, key, "a map of value: label");
    for (const auto& entry : map) out[scalar(entry.first, key)] = scalar(entry.second, key);
    return out;
  }

  void finish() {
    for (const auto& entry : node_) {
      const std::string key = scalar(entry.first, "key");
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      std::vector<std::string> names = known_;
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
      fail(context_, entry.first.Mark(),
           fmt::format("{}: unknown key '{}', expected one of {}", owner_, key, fmt::join(names, ", ")));
    }
  }

  [[noreturn]] void fail_at(const YAML::Node& value, const std::string& key, const std::string& expected) const {
    const std::string got = value.IsScalar() ? fmt::format(" '{}'", value.Scalar()) : std::string();
    fail(context_, value.Mark(), fmt::format("{}: {}{}, expected {}", owner_, key, got, expected));
  }
  [[noreturn]] void fail_here(const std::string& what) const { fail(context_, node_.Mark(), what); }

  std::string scalar(const YAML::Node& value, const std::string& key) const {
    if (!value.IsScalar()) fail_at(value, key, "a single value");
    return value.Scalar();
  }

  void check_column(const YAML::Node& at, const std::string& key, const std::string& name) const {
    std::vector<std::string> known = {"model", "data",  "policy", "device", "sample",
                                      "seed",  "layer", "head",   "x",      "metric"};
    if (key == "columns") known.insert(known.end(), {"value", "unit", "text"});  // of a listing
    known.insert(known.end(), context_.axes.begin(), context_.axes.end());
    if (std::find(known.begin(), known.end(), name) != known.end()) return;
    fail(context_, at.Mark(),
         fmt::format("{}: {} names the column '{}', expected one of {}", owner_, key, name, fmt::join(known, ", ")));
  }

  void own(std::string owner) { owner_ = std::move(owner); }
  const std::string& owner() const { return owner_; }

 private:
  std::vector<std::string> values(const YAML::Node& value, const std::string& key) const {
    if (value.IsScalar()) return {value.Scalar()};
    if (!value.IsSequence()) fail_at(value, key, "a value or a list of values");
    std::vector<std::string> out;
    for (const YAML::Node& item : value) out.push_back(scalar(item, key));
    if (out.empty()) fail_at(value, key, "at least one value");
    return out;
  }

  const Context& context_;
  YAML::Node node_;
  std::string owner_;
  std::vector<std::string> known_;
};

// Names become file names and HTML anchors.
std::string parse_name(Map& map, const std::string& kind, std::set<std::string>& taken) {
  const YAML::Node node = map.require("name");
  std::string name = map.scalar(node, "name");
  const bool plain = !name.empty() && name.size() <= 64 &&
                     name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == name.npos && name[0] != '-';
  if (!plain) map.fail_at(node, "name", "lower-case letters, digits, '-' and '_' (it becomes a file name)");
  if (!taken.insert(name).second) map.fail_at(node, "name", "a name that no other table or plot has");
  map.own(fmt::format("{} '{}'", kind, name));
  return name;
}

Measure parse_measure(Map& map) {
  Measure measure;
  measure.metrics = map.list("metric");
  const YAML::Node ratio = map.find("ratio");
  if (ratio.IsDefined()) {
    measure.ratio = map.list("ratio");
    if (measure.ratio.size() != 2) map.fail_at(ratio, "ratio", "two metrics, [numerator, denominator]");
  }
  if (measure.metrics.empty() == measure.ratio.empty()) {
    map.fail_here(fmt::format("{}: expected either 'metric' or 'ratio'", map.owner()));
  }
  measure.aggregate =
      map.word<Aggregate>("aggregate", Aggregate::kMean,
                          {{"mean", Aggregate::kMean}, {"median", Aggregate::kMedian}, {"max", Aggregate::kMax}});
  measure.unit = map.word<std::string>("unit", "", {{"ms", "ms"}, {"GB", "GB"}, {"%", "%"}});
  return measure;
}

// A paper value must name every key of the table's cells and no other, or it would be shown at the wrong place or
// nowhere.
void check_paper(const TablePlan& table, const PaperBlock& paper, const Map& map) {
  for (const PaperValue& value : paper.values) {
    for (const auto& [key, text] : value.keys) {
      const bool used = std::count(table.rows.begin(), table.rows.end(), key) +
                            std::count(table.columns.begin(), table.columns.end(), key) >
                        0;
      if (!used && !table.where.contains(key)) {
        map.fail_here(fmt::format("{}: paper block '{}' has values by '{}', which is no row, column or where key",
                                  map.owner(), table.paper, key));
      }
    }
    for (const auto* keys : {&table.rows, &table.columns}) {
      for (const std::string& key : *keys) {
        if (value.keys.contains(key)) continue;
        map.fail_here(fmt::format("{}: paper block '{}' has the value {} without the key '{}'", map.owner(),
                                  table.paper, value.printed, key));
      }
    }
  }
}

std::optional<Pairing> parse_pairing(const Context& context, Map& map, const TablePlan& table) {
  const YAML::Node node = map.find("paired");
  if (!node.IsDefined()) return std::nullopt;
  Map pair(context, node, map.owner() + ": paired");
  const YAML::Node column = pair.require("column"), with = pair.require("with");
  Pairing out{.column = pair.scalar(column, "column"), .with = pair.scalar(with, "with")};
  out.relative = pair.flag("relative", false);
  pair.finish();
  std::vector<std::string> keys = table.rows;
  keys.insert(keys.end(), table.columns.begin(), table.columns.end());
  if (std::find(keys.begin(), keys.end(), out.column) == keys.end()) {
    pair.fail_at(column, "column", fmt::format("one of the table's rows and columns: {}", fmt::join(keys, ", ")));
  }
  if (table.kind == TableKind::kListing) map.fail_at(node, "paired", "no such key in a listing");
  if (!table.paper.empty()) map.fail_at(node, "paired", "no such key beside 'paper', which prints no differences");
  if (!table.unranked.empty()) map.fail_at(node, "paired", "no such key beside 'unranked': differences have no rank");
  return out;
}

TablePlan parse_table(const Context& context, const YAML::Node& node, const std::map<std::string, PaperBlock>& paper,
                      std::set<std::string>& names) {
  Map map(context, node, "table");
  TablePlan table;
  table.name = parse_name(map, "table", names);
  table.kind =
      map.word<TableKind>("kind", TableKind::kCells, {{"cells", TableKind::kCells}, {"listing", TableKind::kListing}});
  table.title = map.text("title");
  table.note = map.text("note");
  table.measure = parse_measure(map);
  table.rows = map.columns("rows");
  table.columns = map.columns("columns");
  table.where = map.where("where");
  table.labels = map.labels("labels");
  table.digits = map.integer("digits", table.digits, 0, 12);
  table.interval = map.word<IntervalStyle>("interval", table.interval,
                                           {{"yes", IntervalStyle::kRange},
                                            {"no", IntervalStyle::kNone},
                                            {"true", IntervalStyle::kRange},
                                            {"false", IntervalStyle::kNone},
                                            {"range", IntervalStyle::kRange},
                                            {"half_width", IntervalStyle::kHalfWidth}});
  table.better = map.word<Better>("better", Better::kUnknown, {{"lower", Better::kLower}, {"higher", Better::kHigher}});
  table.unranked = map.list("unranked");
  table.limit = map.integer("limit", table.limit, 1, 1000);
  table.kendall = map.flag("kendall", false);
  table.paper = map.text("paper");
  if (table.kind == TableKind::kCells && table.rows.empty()) map.require("rows");
  if (table.kind == TableKind::kListing && table.columns.empty()) map.require("columns");
  if (table.kind == TableKind::kListing && !table.measure.ratio.empty()) {
    map.fail_at(map.find("ratio"), "ratio", "'metric' in a listing");
  }
  if (table.kind == TableKind::kCells) {
    for (const std::string& column : table.columns) {
      if (column == "value" || column == "unit" || column == "text") {
        map.fail_at(map.find("columns"), "columns", "no '" + column + "' unless kind is listing");
      }
    }
    const bool keyed = std::count(table.rows.begin(), table.rows.end(), "metric") +
                           std::count(table.columns.begin(), table.columns.end(), "metric") >
                       0;
    if (table.measure.metrics.size() > 1 && !keyed) table.columns.push_back("metric");
  }
  table.paired = parse_pairing(context, map, table);
  if (!table.paper.empty()) {
    const auto block = paper.find(table.paper);
    if (block == paper.end()) {
      map.fail_at(
          map.find("paper"), "paper", paper.empty() ? "a block under the spec's 'paper', which has none" : [&] {
            std::string blocks = "one of the blocks under 'paper':";
            for (const auto& [name, unused] : paper) blocks += " " + name;
            return blocks;
          }());
    }
    check_paper(table, block->second, map);
  }
  if (table.kendall && table.paper.empty())
    map.fail_at(map.find("kendall"), "kendall", "a 'paper' block to compare with");
  map.finish();
  return table;
}

PlotPlan parse_plot(const Context& context, const YAML::Node& node, std::set<std::string>& names) {
  Map map(context, node, "plot");
  PlotPlan plot;
  plot.name = parse_name(map, "plot", names);
  map.require("kind");
  plot.kind = map.word<PlotKind>("kind", PlotKind::kCurve,
                                 {{"curve", PlotKind::kCurve},
                                  {"bars", PlotKind::kBars},
                                  {"scatter", PlotKind::kScatter},
                                  {"roofline", PlotKind::kRoofline},
                                  {"heatmap", PlotKind::kHeatmap},
                                  {"image", PlotKind::kImage}});
  plot.title = map.text("title");
  plot.note = map.text("note");
  plot.measure = parse_measure(map);
  const bool matrix = plot.kind == PlotKind::kHeatmap || plot.kind == PlotKind::kImage;
  const bool roofline = plot.kind == PlotKind::kRoofline;
  if (plot.kind == PlotKind::kScatter || plot.kind == PlotKind::kImage || roofline) {
    plot.x = "x";
  } else {
    plot.x = map.column("x");
  }
  if (plot.kind == PlotKind::kHeatmap) plot.y = map.column("y");
  if (!matrix) plot.series = map.columns("series");
  if (roofline) {
    plot.label = map.columns("label");
    map.require("ceilings");
    plot.ceilings = map.list("ceilings");
    if (plot.ceilings.size() != 2) {
      map.fail_at(map.find("ceilings"), "ceilings", "two metrics, [bytes per second, work per second]");
    }
  } else {
    plot.facet = map.columns("facet");
  }
  plot.where = map.where("where");
  plot.labels = map.labels("labels");
  plot.x_label = map.text("x_label");
  plot.y_label = map.text("y_label");
  const Words<Scale> scales = {{"linear", Scale::kLinear}, {"log2", Scale::kLog2}, {"log10", Scale::kLog10}};
  if (matrix) {
    plot.z_label = map.text("z_label");
    plot.z_scale = map.word<Scale>("z_scale", Scale::kLinear, scales);
    plot.z_range = map.range("z_range");
  } else if (roofline) {
    plot.x_scale = plot.y_scale = Scale::kLog10;
  } else {
    if (plot.kind != PlotKind::kBars) {
      plot.x_scale = map.word<Scale>("x_scale", Scale::kLinear, scales);
      plot.x_range = map.range("x_range");
    }
    plot.y_scale = map.word<Scale>("y_scale", Scale::kLinear, scales);
    plot.y_range = map.range("y_range");
    plot.band = map.flag("band", true);
  }
  const std::size_t metrics = plot.measure.metrics.size();
  const bool keyed = std::count(plot.series.begin(), plot.series.end(), "metric") +
                         std::count(plot.facet.begin(), plot.facet.end(), "metric") + (plot.x == "metric") +
                         (plot.y == "metric") >
                     0;
  const bool two_metrics = plot.kind == PlotKind::kScatter || roofline;
  if (two_metrics && metrics != 2) {
    map.fail_at(map.find("metric"), "metric",
                roofline ? "two metrics, [work per byte, work per second], in a roofline"
                         : "two metrics, [x, y], in a scatter plot");
  }
  if (plot.kind == PlotKind::kImage && metrics == 0) map.fail_at(map.find("ratio"), "ratio", "'metric' in an image");
  if (!two_metrics && metrics > 1 && !keyed) {
    map.fail_at(map.find("metric"), "metric", "one metric, or 'metric' among x, series or facet");
  }
  if (!plot.measure.ratio.empty() && keyed) {
    map.fail_at(map.find("ratio"), "ratio", "no 'metric' among x, y, series and facet beside a ratio");
  }
  map.finish();
  return plot;
}

// A line of a table at once: `value` is a list, and so is the one key whose values it goes along.
std::size_t values_of(Map& entry, const YAML::Node& item) {
  const YAML::Node numbers = entry.require("value");
  if (!numbers.IsSequence()) return 1;
  int lists = 0;
  for (const auto& pair : item) {
    if (!pair.second.IsSequence()) continue;
    ++lists;
    if (pair.second.size() == numbers.size() && numbers.size() > 0) continue;
    entry.fail_at(pair.second, pair.first.Scalar(), fmt::format("as many values as 'value' has, {}", numbers.size()));
  }
  if (lists != 2) entry.fail_at(numbers, "value", "one key with a list beside a list of values");
  return numbers.size();
}

PaperValue parse_paper_value(Map& entry, const YAML::Node& item, std::size_t index) {
  const bool line = entry.require("value").IsSequence();
  const auto at = [&](const YAML::Node& value) { return line && value.IsSequence() ? value[index] : value; };
  PaperValue value;
  const YAML::Node number = at(entry.require("value"));
  value.printed = entry.scalar(number, "value");
  const auto parsed = parse_number(value.printed);
  if (!parsed) entry.fail_at(number, "value", "a number as the paper prints it");
  value.value = *parsed;
  for (const auto& pair : item) {
    const std::string key = entry.scalar(pair.first, "key");
    if (key == "value") continue;
    entry.check_column(pair.first, "a value", key);
    value.keys[key] = entry.scalar(at(pair.second), key);
  }
  return value;
}

PaperBlock parse_paper(const Context& context, const YAML::Node& node, const std::string& name) {
  Map map(context, node, fmt::format("paper block '{}'", name));
  PaperBlock block;
  block.table = map.text("table");
  block.page = map.text("page");
  block.caption = map.text("caption");
  const YAML::Node values = map.require("values");
  if (!values.IsSequence()) map.fail_at(values, "values", "a list of {column: value, ..., value: number}");
  for (const YAML::Node& item : values) {
    Map entry(context, item, map.owner());
    const std::size_t count = values_of(entry, item);
    for (std::size_t i = 0; i < count; ++i) block.values.push_back(parse_paper_value(entry, item, i));
  }
  map.finish();
  return block;
}

void require_list(const Context& context, const YAML::Node& node, std::string_view key) {
  if (!node.IsSequence()) fail(context, node.Mark(), fmt::format("{}: expected a list", key));
}

bool given(const YAML::Node& node) { return node.IsDefined() && !node.IsNull(); }

}  // namespace

ReportPlan parse_report(const YAML::Node& tables, const YAML::Node& plots, const YAML::Node& paper,
                        std::span<const std::string> axes, std::string_view file) {
  const Context context{.axes = axes, .file = file};
  ReportPlan plan;
  if (given(paper)) {
    if (!paper.IsMap()) fail(context, paper.Mark(), "paper: expected a map of named blocks");
    for (const auto& entry : paper) {
      const std::string& name = entry.first.Scalar();
      if (!plan.paper.emplace(name, parse_paper(context, entry.second, name)).second) {
        fail(context, entry.first.Mark(), fmt::format("paper: block '{}' appears twice", name));
      }
    }
  }
  std::set<std::string> names = {"table", "index", "rows", "manifest", "spec"};  // taken by the report's own files
  if (given(tables)) {
    require_list(context, tables, "tables");
    for (const YAML::Node& node : tables) plan.tables.push_back(parse_table(context, node, plan.paper, names));
  }
  if (given(plots)) {
    require_list(context, plots, "plots");
    for (const YAML::Node& node : plots) plan.plots.push_back(parse_plot(context, node, names));
  }
  return plan;
}

}  // namespace kv
