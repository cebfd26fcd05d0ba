#include "harness/spec/report_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/report/cell.h"
#include "harness/rows.h"
#include "sim/policy/spelling.h"

namespace kv {

ReportReader::ReportReader(const YamlDocument& document, const YAML::Node& node, std::string owner,
                           const RowNames& names)
    : MapReader(document, node, std::move(owner)), names_(names) {}

std::string ReportReader::name(const std::string& kind, std::set<std::string>& used_names) {
  const YAML::Node value = require("name", "text", "file name and anchor: lower-case letters, digits, '-' and '_'");
  if (!value.IsDefined()) return {};  // of a blank map
  std::string name = scalar(value, "name");
  const bool plain = !name.empty() && name.size() <= 64 &&
                     name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == name.npos && name[0] != '-';
  if (!plain) fail("name", "expected lower-case letters, digits, '-' and '_' (it becomes a file name)");
  if (!used_names.insert(name).second) fail("name", "expected a name that no other table or plot has");
  rename(fmt::format("{} '{}'", kind, name));
  return name;
}

std::vector<std::string> ReportReader::columns_for(const std::string& key) const {
  std::vector<std::string> known = {"model", "data",  "policy", "device", "sample",
                                    "seed",  "layer", "head",   "x",      "metric"};
  if (key == "columns") known.insert(known.end(), {"value", "unit", "text"});
  known.insert(known.end(), names_.axes.begin(), names_.axes.end());
  return known;
}

void ReportReader::check_column(const YAML::Node& place, const std::string& key, const std::string& name) const {
  const std::vector<std::string> known = columns_for(key);
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  document().fail(place, fmt::format("{}: {} names the column '{}'{} (expected one of: {})", owner(), key, shown(name),
                                     did_you_mean(name, known), fmt::join(known, ", ")));
}

std::string ReportReader::column(const std::string& key, std::string_view help) {
  const YAML::Node value = find(key, "column", help);
  if (!value.IsDefined()) return {};
  std::string name = scalar(value, key);
  check_column(value, key, name);
  return name;
}

bool ReportReader::is_column(const std::string& name) const {
  const std::vector<std::string> known = columns_for("");
  return std::find(known.begin(), known.end(), name) != known.end();
}

std::string ReportReader::column_or_number(const std::string& key, std::string_view help) {
  const YAML::Node value = find(key, "column or metric", help);
  if (!value.IsDefined()) return {};
  std::string name = scalar(value, key);
  if (!is_column(name)) check_number(value, key, name);
  return name;
}

void ReportReader::check_number(const YAML::Node& place, const std::string& key, const std::string& name) const {
  const auto& measured = names_.numbers;
  if (std::find(measured.begin(), measured.end(), name) != measured.end()) return;
  std::vector<std::string> known(measured.begin(), measured.end());
  std::string expected = fmt::format("a metric with one number a sample: {}", fmt::join(measured, ", "));
  if (key == "x") {
    known = columns_for(key);
    expected = fmt::format("a column: {}; or {}", fmt::join(known, ", "), expected);
    known.insert(known.end(), measured.begin(), measured.end());
  }
  document().fail(place, fmt::format("{}: {} names '{}'{} (expected {})", owner(), key, shown(name),
                                     did_you_mean(name, known), expected));
}

std::optional<EqualSize> ReportReader::equal_size(const std::string& key, std::string_view help) {
  const YAML::Node map = find(key, "{metric: value or [values]}", help);
  if (!map.IsDefined()) return std::nullopt;
  if (!map.IsMap() || map.size() != 1) fail(key, "expected a map of one metric: {metric: [values]}");
  EqualSize at{.metric = map.begin()->first.Scalar()};
  check_number(map.begin()->first, key, at.metric);
  for (const YAML::Node& value : items_of(map.begin()->second)) {
    at.values.push_back(scalar(value, at.metric));
    if (!parse_number(at.values.back())) fail_at(value, key, "expected a number");
    if (std::count_if(at.values.begin(), at.values.end(),
                      [&](const std::string& other) { return same_value(other, at.values.back()); }) > 1) {
      fail_at(value, key, "the same value appears twice");
    }
  }
  if (at.values.empty()) fail(key, "expected at least one value");
  return at;
}

std::vector<std::string> ReportReader::columns(const std::string& key, std::string_view help) {
  const YAML::Node value = find(key, "a column or a list", help);
  if (!value.IsDefined()) return {};
  std::vector<std::string> names = scalars(value, key);
  for (size_t i = 0; i < names.size(); ++i) check_column(value.IsSequence() ? value[i] : value, key, names[i]);
  return names;
}

Where ReportReader::where_map(const std::string& key, std::string_view help) {
  Where accepted;
  const YAML::Node map = find(key, "{column: value, [values] or {not: [values]}}", help);
  if (!map.IsDefined()) return accepted;
  if (!map.IsMap()) fail(key, "expected a map of column: value or column: [values]");
  for (const auto& entry : map) {
    const std::string& name = entry.first.Scalar();
    check_column(entry.first, key, name);
    if (!entry.second.IsMap()) {
      accepted[name] = {.values = scalars(entry.second, name)};
      continue;
    }
    MapReader excluded(document(), entry.second, fmt::format("{}: {}: {}", owner(), key, name));
    const YAML::Node values = excluded.find("not", "value or [values]", "what is left out");
    excluded.finish();  // before what is lacking: a misspelt key is both
    if (!values.IsDefined()) excluded.fail_here("lacks the key 'not'");
    accepted[name] = {.values = excluded.scalars(values, "not"), .excludes = true};
  }
  return accepted;
}

Labels ReportReader::labels(const std::string& key, std::string_view help) {
  Labels labels;
  const YAML::Node map = find(key, "{value: label}", help);
  if (!map.IsDefined()) return labels;
  if (!map.IsMap()) fail(key, "expected a map of value: label");
  for (const auto& entry : map) labels[entry.first.Scalar()] = scalar(entry.second, key);
  return labels;
}

Measure ReportReader::measure() {
  Measure measure;
  measure.metrics = list("metric", "what is shown: names in the rows' column metric");
  measure.ratio = list("ratio", "instead: two metrics, the sum of the first over samples / the sum of the second");
  measure.aggregate =
      word<Aggregate>("aggregate", Aggregate::kMean,
                      {{"mean", Aggregate::kMean}, {"median", Aggregate::kMedian}, {"max", Aggregate::kMax}},
                      "over samples; within a sample always the mean (max: the largest)");
  measure.unit =
      word<std::string>("unit", "", {{"ms", "ms"}, {"GB", "GB"}, {"%", "%"}},
                        "how seconds, bytes and plain numbers are shown; as the rows have them where absent");
  return measure;
}

}  // namespace kv
