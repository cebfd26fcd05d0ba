#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "harness/cli/experiments.h"
#include "harness/cli/inputs.h"
#include "harness/cli/kinds.h"
#include "harness/cli/verbs.h"
#include "harness/metrics/metric.h"
#include "harness/protocols/protocol.h"
#include "harness/spec/own_options.h"
#include "harness/spec/spec_reader.h"
#include "kernels/error.h"
#include "sim/model/named_models.h"
#include "sim/policy/policy.h"
#include "sim/tasks/task.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

template <class Entries>
void print_entries(const Entries& entries) {
  size_t width = 0;
  for (const auto* entry : entries) width = std::max(width, entry->name.size());
  for (const auto* entry : entries) fmt::print("{:<{}}  {}\n", entry->name, width, entry->summary);
}

// One that cannot be read must not hide the others.
void print_experiments() {
  for (const fs::path& file : experiment_files()) {
    try {
      const Spec spec = load_spec(file);
      fmt::print("{:<18}  {}\n", spec.name, spec.question);
    } catch (const UserError& error) {
      fmt::print("{:<18}  cannot be read: {}\n", file.stem().string(), error.what());
    }
  }
}

void print_models() {
  for (const NamedModel& model : named_models()) fmt::print("{:<18}  {}\n", model.name, model.summary);
}

void print_tasks() {
  Task own{.name = std::string(kOwnTask), .summary = std::string(kOwnSummary), .fit = Fit::kCut, .chars_per_token = 0};
  std::vector<const Task*> tasks = all_tasks();
  tasks.push_back(&own);
  print_entries(tasks);
}

void list_kind(std::string_view kind) {
  if (kind == "protocols") print_entries(protocols());
  if (kind == "policies") print_entries(policies());
  if (kind == "allocations") print_entries(allocations());
  if (kind == "admissions") print_entries(admissions());
  if (kind == "selections") print_entries(selections());
  if (kind == "metrics") print_entries(metrics());
  if (kind == "tasks") print_tasks();
  if (kind == "models") print_models();
  if (kind == "experiments") print_experiments();
}

void list(const std::string& choice) {
  if (!choice.empty()) return list_kind(choice);
  for (const Kind& kind : kKinds) {
    fmt::print("{}{}:\n", &kind == kKinds.data() ? "" : "\n", kind.all);
    list_kind(kind.all);
  }
}

}  // namespace

void add_list(CLI::App& app, Verbs&) {
  auto kind = std::make_shared<std::string>();
  std::vector<std::string> kinds;
  for (const Kind& known : kKinds) kinds.emplace_back(known.all);
  CLI::App* verb = app.add_subcommand(
      "list",
      "Lists protocols, policies, allocations, admissions, selections, metrics, tasks, model shapes and experiments");
  verb->add_option("KIND", *kind,
                   "protocols | policies | allocations | admissions | selections | metrics | tasks | models | "
                   "experiments (default: all)")
      ->check(any_word_of(kinds));
  verb->footer("Examples:\n  kvlab list\n  kvlab list policies\nkvlab describe NAME explains what is listed.");
  verb->callback([kind] { list(*kind); });
}

}  // namespace kv
