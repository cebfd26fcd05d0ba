#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "harness/cli/inputs.h"
#include "harness/cli/verbs.h"
#include "harness/files.h"
#include "harness/protocols/protocol.h"
#include "harness/run.h"
#include "harness/spec/component_check.h"
#include "harness/spec/names.h"
#include "harness/spec/spec_reader.h"
#include "kernels/error.h"
#include "sim/policy/policy.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

struct NewArguments {
  std::string file = "experiment.yaml";
  std::string protocol, model = "experiments/models/reference";
  std::vector<std::string> policies;
};

void check_policies(const std::vector<std::string>& names) {
  for (const std::string& name : names) check_name({name, "--policies"}, "policy", names_of(policies()));
}

// The keys that the template leaves at their defaults, as comments.
std::string further_keys(const std::string& yaml) {
  std::string text;
  for (const DeclaredParam& key : spec_keys()) {
    const std::string line = fmt::format("# {}: {}", key.key, key.fallback == "none" ? "..." : key.fallback);
    if (yaml.find(fmt::format("\n{}:", key.key)) == yaml.npos) text += fmt::format("{:<24}  # {}\n", line, key.help);
  }
  return text;
}

std::string template_of(const Protocol& protocol, const NewArguments& arguments) {
  const std::string policies =
      arguments.policies.empty() ? protocol.starter_policies : fmt::format("[{}]", fmt::join(arguments.policies, ", "));
  const std::string yaml = fmt::format(
      "# What do you want to know? The first comment of a spec is its question, which stands on the result's page.\n"
      "title: My experiment\n"
      "model: {}  # a Hugging Face folder, a .gguf file, OWNER/NAME of the local cache, or {{random: SHAPE}}\n"
      "protocol: {}  # {}\n"
      "policies: {}\n"
      "{}"
      "samples: 2  # of each entry of data\n"
      "seed: 1\n",
      arguments.model, protocol.name, protocol.summary, policies, protocol.starter);
  return fmt::format(
      "{}\n"
      "# Run it:  kvlab {} {}\n"
      "# Tables and plots are kvlab's own while the spec names none; spec.yaml of the result shows them, to go on "
      "from.\n"
      "# What else a spec may say, each with its default (kvlab describe spec has it in full):\n{}",
      yaml, protocol.verb, arguments.file, further_keys(yaml));
}

void write_template(const NewArguments& arguments) {
  std::error_code error;
  if (fs::exists(arguments.file, error)) {
    throw UserError(fmt::format("{}: is there already, expected a new name", arguments.file));
  }
  check_policies(arguments.policies);
  const Protocol& protocol = arguments.protocol.empty() ? default_protocol() : *find_protocol(arguments.protocol);
  const std::string yaml = template_of(protocol, arguments);
  const std::string plan = validate_experiment(parse_spec(yaml, arguments.file));
  write_atomically(arguments.file, yaml);
  fmt::print("{0}: written ({1}); next: kvlab {2} {0}\n", arguments.file, plan, protocol.verb);
}

}  // namespace

void add_new(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<NewArguments>();
  std::vector<std::string> names;
  for (const Protocol* protocol : protocols()) names.push_back(protocol->name);
  CLI::App* verb = app.add_subcommand("new", "Writes a commented spec that runs as it is, to start from");
  verb->add_option("FILE", arguments->file, "the spec (default: experiment.yaml); one that is there stays");
  verb->add_option("--protocol", arguments->protocol, fmt::format("default: {}", default_protocol().name))
      ->check(any_word_of(names));
  verb->add_option("--policies", arguments->policies, "what is compared, such as full,h2o,snapkv")->delimiter(',');
  verb->add_option("--model", arguments->model, "folder, or OWNER/NAME in the local Hugging Face cache");
  verb->footer(
      "Examples:\n"
      "  kvlab new\n"
      "  kvlab new needles.yaml --protocol answer --policies full,snapkv,keydiff\n"
      "kvlab describe protocols explains each protocol.");
  verb->callback([arguments] { write_template(*arguments); });
}

}  // namespace kv
