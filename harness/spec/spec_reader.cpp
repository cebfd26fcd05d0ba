#include "harness/spec/spec_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "harness/files.h"
#include "harness/metrics/metric.h"
#include "harness/protocols/protocol.h"
#include "harness/spec/axis_reader.h"
#include "harness/spec/component_check.h"
#include "harness/spec/component_reader.h"
#include "harness/spec/data_reader.h"
#include "harness/spec/default_report.h"
#include "harness/spec/map_reader.h"
#include "harness/spec/model_reader.h"
#include "harness/spec/report_plan.h"
#include "harness/spec/spec_text.h"
#include "kernels/error.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

std::vector<Located> read_paths(const YamlDocument& document, const YAML::Node& node, const char* key) {
  std::vector<Located> paths;
  for (const YAML::Node& item : items_of(node)) {
    if (!item.IsScalar() || item.Scalar().empty()) document.fail(item, fmt::format("{}: expected a path", key));
    paths.push_back({item.Scalar(), document.where(item)});
  }
  return paths;
}

std::string emitted(const YamlDocument& document, const std::string& question) {
  YAML::Node root = YAML::Clone(document.root());
  root.SetStyle(YAML::EmitterStyle::Block);  // so that further keys can follow
  YAML::Emitter emitter;
  emitter << root;
  return fmt::format("{}{}{}\n", question.empty() ? "" : "# ", question.empty() ? "" : question + "\n",
                     emitter.c_str());
}

// A value in one spelling, whatever the style it is written in; no two values share one.
std::string one_spelling(const YAML::Node& node) {
  std::string text;
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return fmt::format("{}:{}", node.Scalar().size(), node.Scalar());
    case YAML::NodeType::Sequence:
      for (const YAML::Node& item : node) text += one_spelling(item) + ",";
      return "[" + text + "]";
    case YAML::NodeType::Map:
      for (const auto& entry : node) text += one_spelling(entry.first) + "=" + one_spelling(entry.second) + ",";
      return "{" + text + "}";
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      break;
  }
  return "~";
}

std::map<std::string, std::string> row_keys_of(const YAML::Node& root) {
  std::map<std::string, std::string> keys;
  for (const auto& entry : root) keys[entry.first.Scalar()] = one_spelling(entry.second);
  for (const char* shown : {"title", "tables", "plots", "paper", "verdict"}) keys.erase(shown);
  return keys;
}

// Whether keys that are written below the text belong to its map.
bool can_be_continued(const YamlDocument& document, std::string_view yaml) {
  return document.root().Style() != YAML::EmitterStyle::Flow && yaml.find("\n...") == yaml.npos;
}

// The options of every key that belongs to the spec's protocol; a key of another one is refused.
std::map<std::string, std::vector<GivenParam>> read_protocol_options(const YamlDocument& document, MapReader& map,
                                                                     const Protocol& chosen) {
  std::map<std::string, std::vector<GivenParam>> options;
  for (const Protocol* protocol : protocols()) {
    for (const ProtocolKey& key : protocol->keys) {
      const YAML::Node node =
          map.find(key.name, "{option: value}", fmt::format("of protocol {}: {}", protocol->name, key.help));
      if (!is_given(node)) continue;
      if (protocol != &chosen) {
        map.fail(key.name, fmt::format("only protocol {} has it, expected no such key", protocol->name));
      }
      Params params(key.name, options[key.name] = MapReader(document, node, key.name).options());
      key.read(params);
      params.finish();
    }
  }
  return options;
}

const Protocol* read_protocol(MapReader& map) {
  Words<const Protocol*> words;
  for (const Protocol* protocol : protocols()) words.emplace_back(protocol->name, protocol);
  return map.word<const Protocol*>("protocol", &default_protocol(), words,
                                   "how policies are tried: kvlab describe protocols");
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
Located read_benchmarks(const YamlDocument& document, MapReader& map) {
  const YAML::Node node = map.find("benchmarks", "file", "timings, whose rows are shown; nothing runs");
  if (!is_given(node)) return {};
  const std::vector<Located> files = read_paths(document, node, "benchmarks");
  if (files.size() != 1) map.fail("benchmarks", "expected one file");
  for (const char* key : {"model", "trace", "data", "texts", "samples", "policies", "protocol", "axes", "metrics",
                          "seed", "batch", "device", "prefill_chunk"}) {
    if (map.has(key)) map.fail(key, "'benchmarks' brings its rows, expected no such key");
  }
  return files[0];
}

Located read_texts(const YamlDocument& document, MapReader& map) {
  const YAML::Node node =
      map.find("texts", "folder", "books.jsonl, code.jsonl and gsm8k.jsonl, xz or not, in place of experiments/data");
  if (!is_given(node)) return {};
  const std::vector<Located> folders = read_paths(document, node, "texts");
  if (folders.size() != 1) map.fail("texts", "expected one folder");
  return folders[0];
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

// Every key of a spec but its tables, plots and paper.
void read_keys(MapReader& map, Spec& spec) {
  const YamlDocument& document = map.document();
  spec.title = map.text("title", "", "what stands above the page; the file's name where absent");
  if (spec.title.empty()) spec.title = spec.name;
  // Its file's key was taken away when the other spec's keys came in.
  map.find("like", "file", "a spec, beside this one, whose top-level keys hold where they are not written here");
  if (map.has("like")) map.fail("like", "only the spec's file may say it, expected no such --set");
  spec.benchmarks = read_benchmarks(document, map);
  spec.models = read_models(
      document, map.find("model", "folder, OWNER/NAME, {random: SHAPE} or a list",
                         "a Hugging Face folder, a .gguf file, a model of the local Hugging Face cache, or a shape of "
                         "kvlab list models with weights drawn from the seed"));
  spec.traces = read_paths(
      document, map.find("trace", "file or a list", "instead of model and data: what kvlab record wrote"), "trace");
  spec.samples = map.integer("samples", spec.samples, {.low = 1, .high = kMostSamples},
                             "how many of each entry of data that states none");
  spec.data = read_data(document, map.find("data", "list", "what a model reads: kvlab describe data"), spec.samples);
  spec.texts = read_texts(document, map);
  spec.policies = read_components(
      document, map.find("policies", "list", "what is compared: kvlab list policies, kvlab describe NAME"), "policy");
  spec.protocol = read_protocol(map);
  spec.protocol_options = read_protocol_options(document, map, *spec.protocol);
  spec.axes = read_axes(document, map.find("axes", "{name: [values]}", "what is varied: kvlab describe axes"));
  spec.metrics =
      read_components(document, map.find("metrics", "list", "what is measured: kvlab list metrics"), "metric");
  check_labels(spec.metrics, "metric");  // kvlab's own tables name each once
  spec.seed = map.seed("seed", spec.seed, "of samples, of policies that draw and of random weights");
  spec.batch = map.integer_or_word("batch", {.word = "auto", .value = spec.batch}, {.low = 1},
                                   "samples that run together; auto: 1 on the CPU, else what model, lengths, policies "
                                   "and the device's memory allow, up to 16");
  spec.device = map.text("device", spec.device, "cpu, or cuda in a build for it");
  spec.prefill_chunk =
      map.integer_or_word("prefill_chunk", {.word = "auto", .value = spec.prefill_chunk}, {.low = 1},
                          "tokens of a step of the prefill; auto: 1024, or what the protocol knows to suit the device");
}

// Metrics whose rows hold one number of a whole sample.
std::vector<std::string> numbers_of(const Spec& spec) {
  if (!spec.benchmarks.text.empty()) return {};
  std::vector<std::string> numbers = spec.protocol->numbers;
  for (const Component& component : spec.metrics) {
    try {
      const std::vector<std::string> more = make_metric(component.name, component.options)->numbers();
      numbers.insert(numbers.end(), more.begin(), more.end());
    } catch (const UserError&) {  // refused later, with its place
      continue;
    }
  }
  return numbers;
}

// kvlab's own tables and plots, for a spec that says nothing of either.
void add_default_report(const MapReader& map, Spec& spec) {
  if (map.has("tables") || map.has("plots")) return;
  const std::string report = default_report(spec);
  if (report.empty()) return;
  const YamlDocument document(report, "kvlab's own tables and plots");
  MapReader reader(document, document.root(), "");
  const std::vector<std::string> columns = spec.axis_columns();
  ReportPlan plan = read_report(reader, {.axes = columns});
  spec.report.tables = std::move(plan.tables);
  spec.report.plots = std::move(plan.plots);
  const std::string text =
      can_be_continued(map.document(), spec.resolved) ? spec.resolved : emitted(map.document(), spec.question);
  spec.resolved = fmt::format("{}{}\n# The spec names neither tables nor plots; these are kvlab's own.\n{}", text,
                              text.ends_with('\n') ? "" : "\n", report);
}

Spec parse_document(std::string_view yaml, const std::string& file, std::span<const std::string> overrides) {
  const SpecText text = read_spec_text(yaml, file, overrides);
  const YamlDocument& document = text.document;
  MapReader map(document, document.root(), "");
  Spec spec{.file = file, .name = fs::path(file).stem().string(), .question = text.question};
  read_keys(map, spec);
  const std::vector<std::string> columns = spec.axis_columns(), numbers = numbers_of(spec);
  spec.report = read_report(map, {.axes = columns, .numbers = numbers});
  map.finish();
  spec.written = map.written();
  spec.row_keys = row_keys_of(document.root());
  check_sources(spec, map);
  spec.resolved = overrides.empty() && !text.derived ? std::string(yaml) : emitted(document, spec.question);
  add_default_report(map, spec);
  return spec;
}

}  // namespace

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

std::vector<DeclaredParam> spec_keys() {
  MapReader map = MapReader::blank();
  Spec spec;
  read_keys(map, spec);
  read_report(map, {});
  return map.declared();
}

}  // namespace kv
