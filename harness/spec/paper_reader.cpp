#include <fmt/format.h>

#include "harness/rows.h"
#include "harness/spec/report_plan.h"

namespace kv {
namespace {

// A line of a table at once: `value` is a list, and so is the one key whose values it goes along.
size_t values_of_line(const MapReader& entry, const YAML::Node& numbers) {
  if (!numbers.IsSequence()) return 1;
  int lists = 0;
  for (const auto& pair : entry.node()) {
    if (!pair.second.IsSequence()) continue;
    ++lists;
    if (pair.second.size() == numbers.size() && numbers.size() > 0) continue;
    entry.fail_at(pair.second, pair.first.Scalar(),
                  fmt::format("expected as many values as 'value' has, {}", numbers.size()));
  }
  if (lists != 2) entry.fail("value", "expected one key with a list beside a list of values");
  return numbers.size();
}

PaperValue read_value(const ReportReader& entry, const YAML::Node& numbers, size_t index) {
  const bool line = numbers.IsSequence();
  const auto at = [&](const YAML::Node& value) { return line && value.IsSequence() ? value[index] : value; };
  PaperValue value;
  const YAML::Node number = at(numbers);
  value.printed = entry.scalar(number, "value");
  const auto parsed = parse_number(value.printed);
  if (!parsed) entry.fail_at(number, "value", "expected a number as the paper prints it");
  value.value = *parsed;
  for (const auto& pair : entry.node()) {
    const std::string& key = pair.first.Scalar();
    if (key == "value") continue;
    entry.check_column(pair.first, "a value", key);
    value.keys[key] = entry.scalar(at(pair.second), key);
  }
  return value;
}

YAML::Node read_block(MapReader& map, PaperBlock& block) {
  block.table = map.text("table", "", "the paper and its table, as the caption names them");
  block.page = map.text("page", "", "of the paper");
  block.caption = map.text("caption", "", "what a reader has to know of the published numbers");
  return map.require("values", "list", "{column: value, ..., value: number as printed}, or a line of it with lists");
}

}  // namespace

PaperBlock read_paper(ReportReader map) {
  PaperBlock block;
  const YAML::Node values = read_block(map, block);
  if (!values.IsSequence()) map.fail("values", "expected a list of {column: value, ..., value: number}");
  for (const YAML::Node& item : values) {
    ReportReader entry(map.document(), item, map.owner(), map.names());
    const YAML::Node numbers = entry.require("value", "number", "as the paper prints it");
    const size_t count = values_of_line(entry, numbers);
    for (size_t i = 0; i < count; ++i) block.values.push_back(read_value(entry, numbers, i));
  }
  map.finish();
  return block;
}

std::vector<KeySection> paper_keys() {
  MapReader map = MapReader::blank();
  PaperBlock block;
  read_block(map, block);
  return {{"a block of 'paper'", map.declared()}};
}

}  // namespace kv
