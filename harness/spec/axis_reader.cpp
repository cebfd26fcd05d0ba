#include "harness/spec/axis_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "harness/rows.h"

namespace kv {
namespace {

GivenParam axis_value(const YamlDocument& document, const std::string& column, const YAML::Node& node) {
  if (!node.IsScalar() || node.Scalar().empty()) {
    document.fail(node, fmt::format("axes: {}: expected a single value a point", column));
  }
  return {.key = column, .text = node.Scalar(), .where = document.where(node)};
}

Axis read_axis(const YamlDocument& document, const YAML::Node& key, const YAML::Node& values) {
  Axis axis{.where = document.where(values)};
  const std::string& name = key.Scalar();
  std::set<std::vector<std::string>> known;
  for (const YAML::Node& value : items_of(values)) {
    std::vector<GivenParam> point;
    if (value.IsMap()) {
      for (const auto& entry : value) point.push_back(axis_value(document, entry.first.Scalar(), entry.second));
    } else {
      point.push_back(axis_value(document, name, value));
    }
    std::vector<std::string> columns;
    for (const GivenParam& param : point) columns.push_back(param.key);
    if (axis.points.empty()) axis.columns = columns;
    if (columns != axis.columns) {
      document.fail(value, fmt::format("axes: {}: has the keys {}, expected {} as in its first point", name,
                                       fmt::join(columns, ", "), fmt::join(axis.columns, ", ")));
    }
    std::vector<std::string> texts;
    for (const GivenParam& param : point) texts.push_back(param.text);
    if (!known.insert(std::move(texts)).second) {
      document.fail(value, fmt::format("axes: {}: the same point appears twice", name));
    }
    axis.points.push_back(std::move(point));
  }
  if (axis.points.empty()) document.fail(key, fmt::format("axes: {}: expected at least one value", name));
  return axis;
}

}  // namespace

std::vector<Axis> read_axes(const YamlDocument& document, const YAML::Node& map) {
  std::vector<Axis> axes;
  if (!is_given(map)) return axes;
  if (!map.IsMap()) document.fail(map, "axes: expected a map of name: [values]");
  std::set<std::string> columns(standard_columns().begin(), standard_columns().end());
  for (const auto& entry : map) {
    axes.push_back(read_axis(document, entry.first, entry.second));
    for (const std::string& column : axes.back().columns) {
      const bool standard = std::count(standard_columns().begin(), standard_columns().end(), column) > 0;
      if (columns.insert(column).second) continue;
      document.fail(entry.second,
                    standard ? fmt::format("axes: '{}' is a column of every result, expected another name", column)
                             : fmt::format("axes: '{}' appears twice", column));
    }
  }
  return axes;
}

}  // namespace kv
