#include "harness/cli/overrides.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "kernels/error.h"

namespace kv {

namespace {

// --option VALUE is --set key=VALUE.
void add_option_as_set(const std::optional<std::string>& value, std::string_view option, std::string_view key,
                       const std::vector<std::string>& sets, std::vector<std::string>& all) {
  if (!value) return;
  const std::string begin = fmt::format("{}=", key);
  for (const std::string& text : sets) {
    if (text.starts_with(begin)) {
      throw UserError(fmt::format("--{} {} and --set {}: expected one of them", option, *value, text));
    }
  }
  all.push_back(begin + *value);
}

}  // namespace

std::vector<std::string> Overrides::texts() const {
  std::vector<std::string> all = sets;
  add_option_as_set(device, "device", "device", sets, all);
  add_option_as_set(texts_folder, "data", "texts", sets, all);
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
  verb.add_option_function<std::string>(
      "--data", [&overrides](const std::string& folder) { overrides.texts_folder = folder; },
      "folder whose books, code and word problems tasks draw from: the same as --set texts=...");
}

}  // namespace kv
