#include "harness/cli/mistakes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "kernels/error.h"
#include "sim/policy/spelling.h"

namespace kv {
namespace {

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  return names;
}

void add_options(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
}

std::string what_was_not_expected(const CLI::App& app, const CLI::App& verb, const std::string& argument) {
  if (!argument.starts_with("-")) return fmt::format("unexpected argument '{}'", shown(argument));
  std::vector<std::string> options;
  add_options(verb, options);
  if (&verb != &app) add_options(app, options);
  const std::string name = argument.substr(0, argument.find('='));
  return fmt::format("unknown option '{}'{}", shown(name), did_you_mean(name, options));
}

}  // namespace

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& verb = chosen.empty() ? app : *chosen.front();
  const std::string command = chosen.empty() ? "kvlab" : "kvlab " + verb.get_name();
  const std::vector<std::string> leftovers = app.remaining(true);
  const bool lacks_verb = chosen.empty() && dynamic_cast<const CLI::RequiredError*>(&error);
  const bool has_extras = dynamic_cast<const CLI::ExtrasError*>(&error) || lacks_verb;
  // The value of an option that is none counts as a positional, one too many.
  const auto option = std::find_if(leftovers.begin(), leftovers.end(),
                                   [](const std::string& argument) { return argument.starts_with("--"); });
  std::string message = error.what();
  if (option != leftovers.end()) {
    message = what_was_not_expected(app, verb, *option);
  } else if (!leftovers.empty() && has_extras) {
    message = what_was_not_expected(app, verb, leftovers.front());
  } else if (lacks_verb) {
    message = fmt::format("expected a verb: {}", fmt::join(verbs_of(app), ", "));
  }
  if (message.find('\n') != message.npos) message.resize(message.find('\n'));
  return fmt::format("{}: {}; see {} --help", command, message, command);
}

void check_verb(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  const std::vector<std::string> known = verbs_of(app);
  if (std::find(known.begin(), known.end(), argv[1]) != known.end()) return;
  throw UserError(fmt::format("unknown verb '{}'{} (expected one of: {})", shown(argv[1]), did_you_mean(argv[1], known),
                              fmt::join(known, ", ")));
}

}  // namespace kv
