#include "harness/spec/data_reader.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "harness/spec/own_options.h"

namespace kv {
namespace {

struct DataSource {
  const char* key;
  DataKind kind;
  const char* help;
};

constexpr DataSource kSources[] = {
    {"task", DataKind::kTask, "a task (kvlab list tasks), whose options are further keys of this map"},
    {"text", DataKind::kText, "instead: a text file, read in consecutive pieces of `tokens`"},
    {"ids", DataKind::kIds, "instead: a safetensors file with input_ids, read in the same way"},
    {"jsonl", DataKind::kJsonl, "instead: a file of JSON lines with contexts and questions (protocol answer)"}};

DataSpec read_keys(MapReader& map, int samples) {
  DataSpec data;
  for (const DataSource& source : kSources) {
    const std::string text = map.text(source.key, "", source.help);
    if (text.empty()) continue;
    data.kind = source.kind;
    data.source = {text, map.where(source.key)};
  }
  data.name = map.text("name", "", "what the rows call it; the task's or file's name where absent");
  data.tokens = map.integer("tokens", {.low = 1}, "a sample's length; of a file all of it where absent");
  data.samples =
      map.integer("samples", samples, {.low = 1, .high = kMostSamples}, "how many; where absent, the spec's `samples`");
  data.subset = map.text("subset", "", "of jsonl: lines with this value of `task`; all where absent");
  data.metric = map.text("metric", "", "of jsonl: how answers are graded; the data set's own where absent");
  return data;
}

void check_entry(const MapReader& map, const DataSpec& data) {
  if (data.kind == DataKind::kJsonl) {
    if (data.tokens) map.fail("tokens", "contexts of a data set have their own lengths, expected no such key");
    return;
  }
  for (const char* key : {"subset", "metric"}) {
    if (map.has(key)) map.fail(key, "belongs to jsonl, expected no such key");
  }
}

DataSpec read_entry(const YamlDocument& document, const YAML::Node& node, int samples) {
  if (node.IsScalar() && !node.Scalar().empty()) {
    return {.name = node.Scalar(), .source = {node.Scalar(), document.where(node)}, .samples = samples};
  }
  MapReader map(document, node, "data");
  DataSpec data = read_keys(map, samples);
  int sources = 0;
  for (const DataSource& source : kSources) sources += map.has(source.key) ? 1 : 0;
  if (sources != 1) {
    if (sources == 0) map.finish();  // a misspelt one is named
    map.fail_here("expected exactly one of the keys task, text, ids, jsonl");
  }
  const bool is_task = data.kind == DataKind::kTask;
  if (data.name.empty()) {
    data.name = is_task ? data.source.text : std::filesystem::path(data.source.text).stem().string();
  }
  if (is_task) data.options = map.options();
  if (is_task && data.source.text == kOwnTask) data.kind = DataKind::kOwn;
  map.finish();
  check_entry(map, data);
  return data;
}

}  // namespace

std::vector<DataSpec> read_data(const YamlDocument& document, const YAML::Node& list, int samples) {
  std::vector<DataSpec> entries;
  std::set<std::string> names;
  for (const YAML::Node& item : items_of(list)) {
    entries.push_back(read_entry(document, item, samples));
    const std::string& name = entries.back().name;
    if (names.insert(name).second) continue;
    document.fail(item, fmt::format("data: '{}' appears twice, expected a name of its own for each", name));
  }
  return entries;
}

std::vector<KeySection> data_keys() {
  MapReader map = MapReader::blank();
  read_keys(map, 1);
  return {{"an entry of 'data': the name of a task, or a map with these keys", map.declared()}};
}

}  // namespace kv
