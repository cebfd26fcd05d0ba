#include "harness/protocols/profiles.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/experiments.h"
#include "harness/cli/overrides.h"
#include "harness/cli/verbs.h"
#include "harness/notice.h"
#include "harness/ranks/agreement.h"

namespace kv {
namespace {

struct ProfileArguments {
  std::string spec, out;
  Overrides overrides;
  bool quiet = false;
};

void run_profile(const ProfileArguments& arguments) {
  const auto profiles =
      make_profiles(load_named_spec(arguments.spec, arguments.overrides.texts()),
                    {.out = arguments.out, .verbosity = arguments.quiet ? Verbosity::kQuiet : Verbosity::kNormal});
  if (arguments.quiet) return;
  fmt::print("{}", profile_table(profiles));
  for (const SavedProfile& profile : profiles) notice(profile.file.string());
}

}  // namespace

void add_profile(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<ProfileArguments>();
  CLI::App* verb = app.add_subcommand("profile", "Makes the budget profiles that allocation lu-kv looks up");
  verb->add_option("SPEC", arguments->spec, "file (YAML) with protocol: profile")->required();
  verb->add_option("--out", arguments->out, "folder of the profiles (default: profiles/ in the model's)");
  add_override_options(*verb, arguments->overrides);
  verb->add_flag("--quiet", arguments->quiet, "no progress and no table");
  verb->footer(
      "Examples:\n"
      "  kvlab profile experiments/002-profile.yaml\n"
      "  kvlab profile my.yaml --set samples=4 --out /tmp/profiles");
  verb->callback([arguments] {
    require_alone("kvlab profile");
    run_profile(*arguments);
  });
}

}  // namespace kv
