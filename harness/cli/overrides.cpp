#include "harness/cli/overrides.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "kernels/error.h"

namespace kv {

std::vector<std::string> Overrides::texts() const {
  std::vector<std::string> all = sets;
  if (!device) return all;
  for (const std::string& text : sets) {
    if (text.starts_with("device=")) {
      throw UserError(fmt::format("--device {} and --set {}: expected one of them", *device, text));
    }
  }
  all.push_back("device=" + *device);
  return all;
}

void add_override_options(CLI::App& verb, Overrides& overrides) {
  verb.add_option("--set", overrides.sets, "key=value: replaces a value of the spec, dots lead inside")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  // CLI11 would take an empty name for none.
  verb.add_option_function<std::string>(
      "--device", [&overrides](const std::string& name) { overrides.device = name; },
      "cpu or cuda: the same as --set device=...");
}

}  // namespace kv
