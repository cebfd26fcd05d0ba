#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "harness/cli/verbs.h"
#include "harness/metrics/metric.h"
#include "harness/run.h"
#include "harness/spec/spec.h"
#include "harness/spec/task_options.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/model/named_models.h"
#include "sim/model/weights.h"
#include "sim/policy/spelling.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

template <class Entries>
void print_entries(const Entries& entries) {
  size_t width = 0;
  for (const auto* entry : entries) width = std::max(width, entry->name.size());
  for (const auto* entry : entries) fmt::print("{:<{}}  {}\n", entry->name, width, entry->summary);
}

std::vector<fs::path> experiment_files() {
  std::vector<fs::path> files;
  const fs::path folder = find_shipped("experiments");
  if (folder.empty()) throw UserError("experiments: no such folder here or above, or beside the program");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void print_experiments() {
  for (const fs::path& file : experiment_files()) {
    const Spec spec = load_spec(file);
    fmt::print("{:<18}  {}\n", spec.name, spec.question);
  }
}

void print_models() {
  for (const NamedModel& model : named_models()) fmt::print("{:<18}  {}\n", model.name, model.summary);
}

constexpr std::array kKinds = {"policies", "allocations", "metrics", "tasks", "models", "experiments"};

void list_kind(std::string_view kind) {
  if (kind == "policies") print_entries(policies());
  if (kind == "allocations") print_entries(allocations());
  if (kind == "metrics") print_entries(metrics());
  if (kind == "tasks") print_entries(all_tasks());
  if (kind == "models") print_models();
  if (kind == "experiments") print_experiments();
}

void list(const std::string& kind) {
  if (!kind.empty()) return list_kind(kind);
  for (const char* each : kKinds) {
    fmt::print("{}{}:\n", each == kKinds.front() ? "" : "\n", each);
    list_kind(each);
  }
}

void print_options(const std::vector<DeclaredParam>& options) {
  if (options.empty()) fmt::print("no options\n");
  for (const DeclaredParam& option : options) {
    fmt::print("  {:<16} {} (default {})\n  {:<16} {}\n", option.key, option.type, option.fallback, "", option.help);
  }
}

void describe_task(const Task& task) {
  fmt::print("task {}: {}\n", task.name, task.summary);
  std::vector<DeclaredParam> declared;
  parse_task_options(task, {}, &declared);
  for (DeclaredParam& option : declared) {
    if (option.type == "integer" || option.type == "number") option.fallback = "the task's own";
  }
  declared.insert(declared.begin(),
                  {.key = "tokens", .type = "integer", .fallback = "none", .help = "length of a sample"});
  print_options(declared);
}

bool describe_experiment(const std::string& name) {
  if (find_shipped("experiments").empty()) return false;
  for (const fs::path& file : experiment_files()) {
    if (file.stem() != name) continue;
    const Spec spec = load_spec(file);
    fmt::print("experiment {}: {}\n{}\n{}\n", spec.name, spec.title, spec.question, validate_experiment(spec));
    return true;
  }
  return false;
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

void describe(const std::string& name) {
  std::vector<std::string> known;
  for (const PolicyEntry* entry : policies()) {
    known.push_back(entry->name);
    if (entry->name != name) continue;
    fmt::print("policy {}: {}\n", name, entry->summary);
    return print_options(describe_policy(name));
  }
  for (const AllocationEntry* entry : allocations()) {
    known.push_back(entry->name);
    if (entry->name != name) continue;
    fmt::print("allocation {}: {}\n", name, entry->summary);
    return print_options(describe_allocation(name));
  }
  for (const MetricEntry* entry : metrics()) {
    known.push_back(entry->name);
    if (entry->name != name) continue;
    fmt::print("metric {}: {}\n", name, entry->summary);
    return print_options(describe_metric(name));
  }
  for (const Task* task : all_tasks()) {
    known.push_back(task->name);
    if (task->name == name) return describe_task(*task);
  }
  for (const NamedModel& model : named_models()) {
    known.emplace_back(model.name);
    if (model.name == name) return describe_model(model);
  }
  if (describe_experiment(name)) return;
  throw UserError(
      fmt::format("describe: '{}' is no policy, allocation, metric, task, model shape or experiment{}; see kvlab list",
                  name, did_you_mean(name, known)));
}

}  // namespace

void add_list(CLI::App& app, Verbs&) {
  auto kind = std::make_shared<std::string>();
  CLI::App* verb =
      app.add_subcommand("list", "Lists policies, allocations, metrics, tasks, model shapes or experiments");
  verb->add_option("KIND", *kind, "policies | allocations | metrics | tasks | models | experiments (default: all)")
      ->check(CLI::IsMember(std::vector<std::string>(kKinds.begin(), kKinds.end())));
  verb->footer("Examples:\n  kvlab list policies\n  kvlab list experiments");
  verb->callback([kind] { list(*kind); });
}

void add_describe(CLI::App& app, Verbs&) {
  auto name = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand(
      "describe", "Explains a policy, allocation, metric, task, model shape or experiment and its options");
  verb->add_option("NAME", *name, "what kvlab list shows")->required();
  verb->footer("Examples:\n  kvlab describe h2o\n  kvlab describe recall\n  kvlab describe 001-table2");
  verb->callback([name] { describe(*name); });
}

}  // namespace kv
