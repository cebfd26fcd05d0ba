#include "harness/spec/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "harness/benchmarks.h"
#include "harness/protocols/protocol.h"
#include "harness/rows.h"
#include "harness/spec/map_reader.h"
#include "harness/spec/report_plan.h"
#include "kernels/error.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

std::string first_comment(std::string_view yaml) {
  std::string question;
  while (!yaml.empty()) {
    const size_t end = std::min(yaml.find('\n'), yaml.size());
    std::string_view line = yaml.substr(0, end);
    yaml.remove_prefix(std::min(end + 1, yaml.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const size_t start = line.find_first_not_of("# \t");
    if (line.empty() && question.empty()) continue;
    if (line.empty() || line[0] != '#') break;
    if (start == line.npos) continue;
    question += (question.empty() ? "" : " ") + std::string(line.substr(start));
  }
  return question;
}

// The items of a list; a single value stands for a list of one.
std::vector<YAML::Node> items(const YAML::Node& node) {
  std::vector<YAML::Node> out;
  if (!is_given(node)) return out;
  if (!node.IsSequence()) return {node};
  for (const YAML::Node& item : node) out.push_back(item);
  return out;
}

std::vector<Located> parse_texts(const YamlDocument& document, const YAML::Node& node, const char* key) {
  std::vector<Located> out;
  for (const YAML::Node& item : items(node)) {
    if (!item.IsScalar() || item.Scalar().empty()) document.fail(item, fmt::format("{}: expected a path", key));
    out.push_back({item.Scalar(), document.where(item)});
  }
  return out;
}

ModelChoice parse_model(const YamlDocument& document, const YAML::Node& node) {
  if (!node.IsMap()) {
    if (!node.IsScalar() || node.Scalar().empty()) document.fail(node, "model: expected a path or {random: NAME}");
    return {.source = {node.Scalar(), document.where(node)}};
  }
  MapReader map(document, node, "model");
  ModelChoice choice{
      .source = {map.text("random", "", "the name of a shape (kvlab list models), its weights drawn from the seed"),
                 map.where("random")},
      .random = true};
  map.finish();
  if (choice.source.text.empty()) map.fail_here("lacks the key 'random': the name of a shape (kvlab list models)");
  return choice;
}

std::vector<ModelChoice> parse_models(const YamlDocument& document, const YAML::Node& node) {
  std::vector<ModelChoice> out;
  for (const YAML::Node& item : items(node)) out.push_back(parse_model(document, item));
  return out;
}

std::map<std::string, std::vector<std::string>> parse_only(const YamlDocument& document, const YAML::Node& node) {
  std::map<std::string, std::vector<std::string>> only;
  if (!is_given(node)) return only;
  if (!node.IsMap()) document.fail(node, "policy: only: expected a map of axis: [values]");
  for (const auto& entry : node) {
    for (const YAML::Node& value : items(entry.second)) {
      if (!value.IsScalar()) document.fail(value, "policy: only: expected a value of the axis, or a list of them");
      only[entry.first.Scalar()].push_back(value.Scalar());
    }
  }
  return only;
}

// A name, or {name: {option: value}}.
SlotChoice parse_slot(const YamlDocument& document, const YAML::Node& node, const std::string& kind) {
  if (node.IsScalar() && !node.Scalar().empty()) return {node.Scalar()};
  if (!node.IsMap() || node.size() != 1 || !node.begin()->second.IsMap()) {
    document.fail(node, fmt::format("{0}: expected a name or {{NAME: {{option: value}}}}", kind));
  }
  MapReader options(document, node.begin()->second, kind);
  return {node.begin()->first.Scalar(), options.rest()};
}

Component parse_named(const YamlDocument& document, const YAML::Node& node, const std::string& kind) {
  Component component{.where = document.where(node)};
  if (node.IsScalar() && !node.Scalar().empty()) {
    component.name = component.label = node.Scalar();
    return component;
  }
  if (!node.IsMap()) document.fail(node, fmt::format("{0}: expected a name or {{{0}: name, option: value}}", kind));
  MapReader map(document, node, kind);
  component.name = map.required_text(kind, fmt::format("its name; other keys are its options", kind));
  component.label = component.name;
  if (kind == "policy") {
    component.only = parse_only(
        document, map.find("only", "{axis: [values]}", "values of axes at which it runs; at all where absent"));
    if (map.has("allocation")) {
      component.allocation = parse_slot(document,
                                        map.find("allocation", "NAME or {NAME: {option: value}}",
                                                 "how budgets are divided among heads; uniform where absent"),
                                        "allocation");
      component.label += "+" + component.allocation.name;
    }
    component.label = map.text("label", component.label, "what the rows call it");
  }
  component.options = map.rest();
  return component;
}

std::vector<Component> parse_components(const YamlDocument& document, const YAML::Node& node, const std::string& kind) {
  std::vector<Component> out;
  std::set<std::string> labels;
  for (const YAML::Node& item : items(node)) {
    out.push_back(parse_named(document, item, kind));
    if (labels.insert(out.back().label).second) continue;
    document.fail(
        item, kind == "policy"
                  ? fmt::format("policy: '{}' appears twice, expected a label of its own for each", out.back().label)
                  : fmt::format("{}: '{}' appears twice", kind, out.back().label));
  }
  return out;
}

DataSpec parse_data_entry(const YamlDocument& document, const YAML::Node& node, int samples) {
  DataSpec data{.samples = samples};
  if (node.IsScalar() && !node.Scalar().empty()) {
    data.name = node.Scalar();
    data.source = {node.Scalar(), document.where(node)};
    return data;
  }
  MapReader map(document, node, "data");
  int kinds = 0;
  for (const auto& [key, kind] : {std::pair{"task", DataKind::kTask},
                                  {"text", DataKind::kText},
                                  {"ids", DataKind::kIds},
                                  {"jsonl", DataKind::kJsonl}}) {
    const std::string source = map.text(key, "", "");
    if (source.empty()) continue;
    ++kinds;
    data.kind = kind;
    data.source = {source, map.where(key)};
  }
  if (kinds != 1) map.fail_here("expected exactly one of the keys task, text, ids, jsonl");
  data.name =
      map.text("name", data.kind == DataKind::kTask ? data.source.text : fs::path(data.source.text).stem().string(),
               "what the rows call it");
  const int tokens = map.integer("tokens", 0, {.low = 1}, "a sample's length");
  if (map.has("tokens")) data.tokens = tokens;
  data.samples = map.integer("samples", samples, {.low = 1}, "how many");
  if (data.kind == DataKind::kTask) {
    data.options = map.rest();
    return data;
  }
  if (data.kind == DataKind::kJsonl) {
    data.subset = map.text("subset", "", "the value of `task`; all where absent");
    data.metric = map.text("metric", "", "how answers are graded; the data set's own where absent");
    if (data.tokens) map.fail("tokens", "contexts of a data set have their own lengths, expected no such key");
  }
  map.finish();
  return data;
}

std::vector<DataSpec> parse_data(const YamlDocument& document, const YAML::Node& node, int samples) {
  std::vector<DataSpec> out;
  std::set<std::string> names;
  for (const YAML::Node& item : items(node)) {
    out.push_back(parse_data_entry(document, item, samples));
    if (!names.insert(out.back().name).second) {
      document.fail(item,
                    fmt::format("data: '{}' appears twice, expected a name of its own for each", out.back().name));
    }
  }
  return out;
}

GivenParam axis_value(const YamlDocument& document, const std::string& column, const YAML::Node& node) {
  if (!node.IsScalar() || node.Scalar().empty()) {
    document.fail(node, fmt::format("axes: {}: expected a single value a point", column));
  }
  return {.key = column, .text = node.Scalar(), .where = document.where(node)};
}

Axis parse_axis(const YamlDocument& document, const YAML::Node& key, const YAML::Node& values) {
  Axis axis{.where = document.where(values)};
  const std::string& name = key.Scalar();
  for (const YAML::Node& value : items(values)) {
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
    const bool doubled = std::any_of(axis.points.begin(), axis.points.end(), [&](const auto& other) {
      return std::equal(other.begin(), other.end(), point.begin(),
                        [](const GivenParam& a, const GivenParam& b) { return a.text == b.text; });
    });
    if (doubled) document.fail(value, fmt::format("axes: {}: the same point appears twice", name));
    axis.points.push_back(std::move(point));
  }
  if (axis.points.empty()) document.fail(key, fmt::format("axes: {}: expected at least one value", name));
  return axis;
}

std::vector<Axis> parse_axes(const YamlDocument& document, const YAML::Node& node) {
  std::vector<Axis> axes;
  if (!is_given(node)) return axes;
  if (!node.IsMap()) document.fail(node, "axes: expected a map of name: [values]");
  std::set<std::string> taken(standard_columns().begin(), standard_columns().end());
  for (const auto& entry : node) {
    axes.push_back(parse_axis(document, entry.first, entry.second));
    for (const std::string& column : axes.back().columns) {
      const bool standard = std::count(standard_columns().begin(), standard_columns().end(), column) > 0;
      if (taken.insert(column).second) continue;
      document.fail(entry.second,
                    standard ? fmt::format("axes: '{}' is a column of every result, expected another name", column)
                             : fmt::format("axes: '{}' appears twice", column));
    }
  }
  return axes;
}

std::string emitted(const YamlDocument& document, const std::string& question) {
  YAML::Emitter emitter;
  emitter << document.root();
  return fmt::format("{}{}{}\n", question.empty() ? "" : "# ", question.empty() ? "" : question + "\n",
                     emitter.c_str());
}

// The options of every key that belongs to the spec's protocol; a key of another one is refused.
std::map<std::string, std::vector<GivenParam>> parse_protocol_options(const YamlDocument& document, MapReader& map,
                                                                      const Protocol& chosen) {
  std::map<std::string, std::vector<GivenParam>> options;
  for (const Protocol* protocol : protocols()) {
    for (const ProtocolKey& key : protocol->keys) {
      const YAML::Node node = map.find(key.name, "{option: value}", key.help);
      if (!is_given(node)) continue;
      if (protocol != &chosen) {
        map.fail(key.name, fmt::format("only protocol {} has it, expected no such key", protocol->name));
      }
      options[key.name] = MapReader(document, node, key.name).rest();
    }
  }
  return options;
}

const Protocol* parse_protocol(MapReader& map) {
  Words<const Protocol*> words;
  for (const Protocol* protocol : protocols()) words.emplace_back(protocol->name, protocol);
  return map.word<const Protocol*>("protocol", &default_protocol(), words, "");
}

void refuse_questions(const Spec& spec) {
  std::vector<std::string> asking;
  for (const Protocol* protocol : protocols()) {
    if (protocol->takes_questions) asking.push_back(protocol->name);
  }
  for (const DataSpec& data : spec.data) {
    if (data.kind != DataKind::kJsonl) continue;
    throw UserError(fmt::format("{}: data: '{}': questions are for protocol {}", data.source.where, data.name,
                                fmt::join(asking, " or ")));
  }
}

// A file of timings has its rows; what a run would be made of has no meaning beside it.
Located parse_benchmarks_key(const YamlDocument& document, MapReader& map) {
  const YAML::Node node = map.find("benchmarks", "file", "timings, whose rows are shown; nothing runs");
  if (!is_given(node)) return {};
  const std::vector<Located> files = parse_texts(document, node, "benchmarks");
  if (files.size() != 1) map.fail("benchmarks", "expected one file");
  for (const char* key : {"model", "trace", "data", "samples", "policies", "protocol", "axes", "metrics", "seed",
                          "batch", "device", "prefill_chunk"}) {
    if (map.has(key)) map.fail(key, "'benchmarks' brings its rows, expected no such key");
  }
  return files[0];
}

void check_sources(const Spec& spec, const MapReader& map) {
  if (!spec.benchmarks.text.empty()) return;
  if (spec.models.empty() == spec.traces.empty()) {
    map.fail_here("expected one of the keys 'model', 'trace' and 'benchmarks'");
  }
  if (spec.protocol->reads_data && !spec.models.empty() && spec.data.empty()) {
    map.fail_here("lacks the key 'data': what the model reads");
  }
  if (!spec.traces.empty() && !spec.data.empty()) map.fail("data", "a trace brings its own data, expected no such key");
  if (spec.policies.empty()) map.fail_here("lacks the key 'policies'");
  if (spec.protocol->check) spec.protocol->check(spec);
  if (!spec.protocol->takes_questions) refuse_questions(spec);
}

Spec parse_document(std::string_view yaml, const std::string& file, std::span<const std::string> overrides) {
  const YamlDocument document(yaml, file, overrides);
  MapReader map(document, document.root(), "");
  Spec spec{.file = file, .name = fs::path(file).stem().string(), .question = first_comment(yaml)};
  spec.title = map.text("title", spec.name, "what stands above the page");
  spec.benchmarks = parse_benchmarks_key(document, map);
  spec.models = parse_models(document, map.find("model", "", ""));
  spec.traces = parse_texts(document, map.find("trace", "", ""), "trace");
  spec.samples = map.integer("samples", spec.samples, {.low = 1}, "");
  spec.data = parse_data(document, map.find("data", "", ""), spec.samples);
  spec.policies = parse_components(document, map.find("policies", "", ""), "policy");
  spec.protocol = parse_protocol(map);
  spec.protocol_options = parse_protocol_options(document, map, *spec.protocol);
  spec.axes = parse_axes(document, map.find("axes", "", ""));
  spec.metrics = parse_components(document, map.find("metrics", "", ""), "metric");
  spec.seed = map.seed("seed", spec.seed, "");
  spec.batch = map.integer("batch", spec.batch, {.low = 1}, "");
  spec.device = map.text("device", spec.device, "");
  spec.prefill_chunk = map.integer("prefill_chunk", spec.prefill_chunk, {.low = 1}, "");
  const std::vector<std::string> columns = spec.axis_columns();
  spec.report = read_report(map, columns);
  map.finish();
  spec.written = map.written();
  check_sources(spec, map);
  spec.resolved = overrides.empty() ? std::string(yaml) : emitted(document, spec.question);
  return spec;
}

}  // namespace

std::vector<std::string> Spec::axis_columns() const {
  if (!benchmarks.text.empty()) return {benchmark_axes().begin(), benchmark_axes().end()};
  std::vector<std::string> columns;
  for (const Axis& axis : axes) columns.insert(columns.end(), axis.columns.begin(), axis.columns.end());
  return columns;
}

std::vector<GivenParam> Spec::options_of(const std::string& protocol_key) const {
  const auto found = protocol_options.find(protocol_key);
  return found == protocol_options.end() ? std::vector<GivenParam>{} : found->second;
}

void Spec::refuse_key(std::string_view key, std::string_view message) const {
  const auto found =
      std::find_if(written.begin(), written.end(), [&](const GivenParam& known) { return known.key == key; });
  if (found == written.end()) return;
  throw UserError(fmt::format("{}: {} = {}: {}", found->where, key, found->text, message));
}

Spec parse_spec(std::string_view yaml, const std::string& file, std::span<const std::string> overrides) {
  try {
    return parse_document(yaml, file, overrides);
  } catch (const YAML::Exception& error) {  // what yaml-cpp itself refuses while a tree is read
    throw UserError(fmt::format("{}:{}:{}: {}", file, error.mark.line + 1, error.mark.column + 1, error.msg));
  }
}

Spec load_spec(const fs::path& file, std::span<const std::string> overrides) {
  return parse_spec(read_file(file), file.string(), overrides);
}

Component parse_component(const std::string& yaml_or_file, const std::string& kind) {
  std::error_code error;
  const bool is_file = fs::is_regular_file(yaml_or_file, error);
  const std::string text = is_file ? read_file(yaml_or_file) : yaml_or_file;
  const std::string owner = is_file ? yaml_or_file : "--" + kind;
  YAML::Node node;
  try {
    node = YAML::Load(text);
  } catch (const YAML::Exception& failed) {
    throw UserError(fmt::format("{}:{}:{}: {}", owner, failed.mark.line + 1, failed.mark.column + 1, failed.msg));
  }
  if (node.IsScalar() && !node.Scalar().empty()) {
    return {.name = node.Scalar(), .label = node.Scalar(), .options = {}, .where = owner};
  }
  if (!node.IsMap()) throw UserError(fmt::format("{0}: expected a name or {{{1}: name, option: value}}", owner, kind));
  const YamlDocument document(text, owner);
  return parse_named(document, document.root(), kind);
}

fs::path resolve_path(const Spec& spec, const Located& path) {
  fs::path asked(path.text);
  std::error_code error;
  if (asked.is_absolute()) {
    if (fs::exists(asked, error)) return asked;
  } else {
    for (fs::path folder = fs::absolute(spec.file, error).parent_path();; folder = folder.parent_path()) {
      if (fs::exists(folder / asked, error)) return folder / asked;
      if (folder == folder.parent_path()) break;
    }
    if (fs::exists(asked, error)) return asked;
  }
  throw UserError(fmt::format("{}: '{}': no such file or folder, looked beside the spec and in every folder above it",
                              path.where, path.text));
}

}  // namespace kv
