#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "harness/cli/experiments.h"
#include "harness/cli/kinds.h"
#include "harness/cli/verbs.h"
#include "harness/metrics/metric.h"
#include "harness/protocols/protocol.h"
#include "harness/run.h"
#include "harness/spec/axis_owners.h"
#include "harness/spec/component_reader.h"
#include "harness/spec/data_reader.h"
#include "harness/spec/model_reader.h"
#include "harness/spec/own_options.h"
#include "harness/spec/report_plan.h"
#include "harness/spec/spec_reader.h"
#include "harness/spec/task_options.h"
#include "kernels/error.h"
#include "sim/model/named_models.h"
#include "sim/model/weights.h"
#include "sim/policy/policy.h"
#include "sim/policy/spelling.h"

namespace kv {
namespace {

void print_options(const std::vector<DeclaredParam>& options) {
  if (options.empty()) fmt::print("no options\n");
  for (const DeclaredParam& option : options) {
    const std::string fallback =
        option.fallback == "required" ? "required" : fmt::format("default {}", option.fallback);
    fmt::print("  {:<16} {} ({})\n  {:<16} {}\n", option.key, option.type, fallback, "", option.help);
  }
}

void print_sections(const std::vector<KeySection>& sections) {
  for (const KeySection& section : sections) {
    fmt::print("{}{}\n", &section == sections.data() ? "" : "\n", section.title);
    print_options(section.keys);
  }
}

void append(std::vector<KeySection>& sections, const std::vector<KeySection>& more) {
  sections.insert(sections.end(), more.begin(), more.end());
}

void describe_spec() {
  std::vector<KeySection> sections = {{"a spec (YAML); kvlab new writes one to start from", spec_keys()}};
  for (const char* kind : {"policy", "metric"}) append(sections, component_keys(kind));
  append(sections, {{"'model' as a map", model_keys()}});
  print_sections(sections);
  fmt::print("\nSee also: kvlab describe data | axes | protocols | tables | plots | verdicts\n");
}

void describe_tables() {
  std::vector<KeySection> sections = table_keys();
  append(sections, paper_keys());
  print_sections(sections);
}

void print_axes(const Protocol& protocol) {
  for (const ProtocolAxis& axis : protocol.axes) fmt::print("  {:<16} {}\n", axis.name, axis.help);
}

void describe_axes() {
  fmt::print("'axes': {{name: [values]}}, or {{name: [{{column: value}}, ...]}} for columns that move together;\n");
  fmt::print("every combination runs\n\nof every protocol that has a use for it\n");
  for (const DeclaredParam& axis : shared_axes()) fmt::print("  {:<16} {}\n", axis.key, axis.help);
  fmt::print("  any option of a task or policy of the spec: kvlab describe NAME lists them\n");
  fmt::print("  NAME.OPTION, one of an allocation, admission or selection that fills a policy's slot: local.window\n");
  for (const Protocol* protocol : protocols()) {
    if (protocol->axes.empty()) continue;
    fmt::print("\nof protocol {}\n", protocol->name);
    print_axes(*protocol);
  }
}

void describe_protocol(const Protocol& protocol) {
  fmt::print("protocol {}: {}\n", protocol.name, protocol.summary);
  if (!protocol.axes.empty()) fmt::print("axes\n");
  print_axes(protocol);
  for (const ProtocolKey& key : protocol.keys) {
    fmt::print("key '{}': {}{}\n", key.name, key.help, key.as_axes ? "; each of them may be an axis" : "");
    print_options(key.options());
  }
  fmt::print("start from one: kvlab new FILE --protocol {0}; it runs with kvlab {1}\n", protocol.name, protocol.verb);
}

void describe_protocols() {
  for (const Protocol* protocol : protocols()) {
    if (protocol != protocols().front()) fmt::print("\n");
    describe_protocol(*protocol);
  }
}

DeclaredParam tokens_of_sample() {
  return {.key = "tokens", .type = "integer", .fallback = "none", .help = "length of a sample"};
}

void describe_own_task() {
  fmt::print("task {}: {}\n", kOwnTask, kOwnSummary);
  std::vector<DeclaredParam> declared = describe_own();
  declared.insert(declared.begin(), tokens_of_sample());
  print_options(declared);
}

void describe_task(const Task& task) {
  fmt::print("task {}: {}\n", task.name, task.summary);
  std::vector<DeclaredParam> declared;
  parse_task_options(task, {}, &declared);
  for (DeclaredParam& option : declared) {
    if (option.type == "integer" || option.type == "number") option.fallback = "the task's own";
  }
  declared.insert(declared.begin(), tokens_of_sample());
  print_options(declared);
}

// What it would run, or what it lacks here: a model, weights or texts that its user has yet to get.
std::string plan_of(const Spec& spec) {
  try {
    return validate_experiment(spec);
  } catch (const UserError& error) {
    return fmt::format("does not run yet: {}", error.what());
  }
}

void describe_experiment(const std::filesystem::path& file) {
  const Spec spec = load_spec(file);
  fmt::print("experiment {}: {}\n{}\n{}\n", spec.name, spec.title, spec.question, plan_of(spec));
}

void describe_model(const NamedModel& model) {
  const ModelConfig config = model.parse();
  const double cache = 2.0 * config.layers * config.kv_size();  // values a token
  fmt::print("model shape {}: {}\n", model.name, model.summary);
  fmt::print("  with random weights: model: {{random: {}}} in a spec\n", model.name);
  fmt::print("  {:<16} {:.2f} billion\n", "parameters", static_cast<double>(parameters_of(config)) / 1e9);
  fmt::print("  {:<16} {}, width {}, MLP {}\n", "layers", config.layers, config.hidden_size, config.intermediate_size);
  fmt::print("  {:<16} {} query, {} KV, dimension {}{}{}\n", "heads", config.heads, config.kv_heads, config.head_dim,
             config.qk_norm ? ", q and k norms" : "", config.qkv_bias ? ", biases" : "");
  fmt::print("  {:<16} {}{}\n", "vocabulary", config.vocab_size, config.tie_word_embeddings ? ", tied embedding" : "");
  fmt::print("  {:<16} {:.0f} bytes a token in bf16, twice that in f32\n", "KV cache", 2 * cache);
}

// Something that describe knows by name.
struct Topic {
  std::string name;
  std::function<void()> print;
};

// A registry's entries, whose options `options` knows by name.
template <class Entries, class Options>
void add_entries(std::vector<Topic>& topics, const char* kind, const Entries& entries, const Options& options) {
  for (const auto* entry : entries) {
    topics.push_back({entry->name, [=] {
                        fmt::print("{} {}: {}\n", kind, entry->name, entry->summary);
                        print_options(options(entry->name));
                      }});
  }
}

std::vector<Topic> topics() {
  std::vector<Topic> all = {{"spec", describe_spec},
                            {"tables", describe_tables},
                            {"plots", [] { print_sections(plot_keys()); }},
                            {"verdicts", [] { print_sections(verdict_keys()); }},
                            {"axes", describe_axes},
                            {"data", [] { print_sections(data_keys()); }},
                            {"protocols", describe_protocols}};
  for (const Protocol* protocol : protocols()) {
    all.push_back({protocol->name, [=] { describe_protocol(*protocol); }});
  }
  add_entries(all, "policy", policies(), [](const std::string& name) { return describe_policy(name); });
  add_entries(all, "allocation", allocations(), [](const std::string& name) { return describe_allocation(name); });
  add_entries(all, "admission", admissions(), [](const std::string& name) { return describe_admission(name); });
  add_entries(all, "selection", selections(), [](const std::string& name) { return describe_selection(name); });
  add_entries(all, "metric", metrics(), [](const std::string& name) { return describe_metric(name); });
  for (const Task* task : all_tasks()) all.push_back({task->name, [=] { describe_task(*task); }});
  all.push_back({std::string(kOwnTask), describe_own_task});
  for (const NamedModel& model : named_models()) {
    all.push_back({std::string(model.name), [&model] { describe_model(model); }});
  }
  for (const std::filesystem::path& file : experiment_files()) {
    all.push_back({file.stem().string(), [=] { describe_experiment(file); }});
  }
  return all;
}

// Prints everything of that name: a metric and a task may share one.
void describe(const std::string& name) {
  std::vector<std::string> known;
  bool found = false;
  for (const Topic& topic : topics()) {
    known.push_back(topic.name);
    if (topic.name != name) continue;
    if (found) fmt::print("\n");
    found = true;
    topic.print();
  }
  if (found) return;
  for (const Kind& kind : kKinds) {
    if (name != kind.one && name != kind.all) continue;
    throw UserError(
        fmt::format("describe: '{}' is a kind, expected the name of one; kvlab list {} prints them", name, kind.all));
  }
  throw UserError(
      fmt::format("describe: '{}' is no part of a spec, protocol, policy, allocation, admission, selection, metric, "
                  "task, model shape or experiment{}; see kvlab list",
                  shown(name), did_you_mean(name, known)));
}

}  // namespace

void add_describe(CLI::App& app, Verbs&) {
  auto name = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand(
      "describe", "Explains the keys of a spec, or anything that kvlab list shows, with its options");
  verb->add_option("NAME", *name,
                   "spec | tables | plots | verdicts | axes | data | protocols, or what kvlab list shows")
      ->required();
  verb->footer("Examples:\n  kvlab describe spec\n  kvlab describe h2o\n  kvlab describe 001-table2");
  verb->callback([name] { describe(*name); });
}

}  // namespace kv
