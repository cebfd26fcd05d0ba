#include "harness/run.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "harness/cli/experiments.h"
#include "harness/cli/overrides.h"
#include "harness/cli/verbs.h"
#include "harness/notice.h"
#include "harness/spec/spec.h"
#include "kernels/error.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::vector<std::string> specs;
  Overrides overrides;
  std::string out;
  bool fresh = false;
  bool no_draw = false;
  bool quiet = false;
};

void run_file(const std::string& file, const Arguments& arguments, Verbs& verbs) {
  const std::vector<std::string> overrides = arguments.overrides.texts();
  const Spec spec = load_named_spec(file, overrides);
  const RunOptions options{.out = arguments.out.empty() ? fs::path("results") / spec.name : fs::path(arguments.out),
                           .start = arguments.fresh ? Start::kFresh : Start::kResume,
                           .draw = arguments.no_draw ? Draw::kLater : Draw::kNow,
                           .verbosity = arguments.quiet ? Verbosity::kQuiet : Verbosity::kNormal,
                           .overrides = overrides};
  if (!arguments.quiet) notice(validate_experiment(spec));
  const RunSummary summary = run_experiment(spec, options);
  // Not fmt::print, which throws where nobody reads: the specs that follow are to run all the same.
  if (!arguments.quiet && !arguments.no_draw) std::fputs((summary.markdown + "\n").c_str(), stdout);
  for (const std::string& problem : summary.problems) notice(problem);
  const std::string line = fmt::format("{}: {} cases ({} from an earlier start), {} skipped, {} failed; {}", spec.name,
                                       summary.cases, summary.reused, summary.skipped, summary.failed,
                                       (options.out / (arguments.no_draw ? "rows.csv" : "index.html")).string());
  if (!arguments.quiet || summary.failed > 0) notice(line);
  // A run in which nothing could run is no success either.
  if (summary.failed > 0 || summary.skipped == summary.cases) verbs.exit_code = 1;
}

}  // namespace

void add_run(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("run", "Runs experiments: rows.csv, tables, plots and index.html of each");
  verb->add_option("SPEC", arguments->specs, "experiment files (YAML)")->required();
  verb->add_option("--out", arguments->out, "result folder (default: results/<spec name>)");
  add_override_options(*verb, arguments->overrides);
  verb->add_flag("--fresh", arguments->fresh, "starts over instead of keeping finished cases");
  verb->add_flag("--no-draw", arguments->no_draw, "rows only: kvlab report draws them later");
  verb->add_flag("--quiet", arguments->quiet, "no progress and no tables; problems are still shown");
  verb->footer(
      "Examples:\n"
      "  kvlab run experiments/quickstart.yaml\n"
      "  kvlab run experiments/001-table2.yaml --set samples=2 --set data.reason.tokens=4096 --out /tmp/t2\n"
      "  kvlab run experiments/001-table2.yaml --device cuda --out /tmp/t2-cuda\n"
      "  kvlab run my.yaml --set 'policies=[full, h2o]' --set policies.h2o.mode=original\n"
      "A killed run goes on where it stopped when it is started again.");
  verb->callback([arguments, &verbs] {
    if (arguments->specs.size() > 1 && !arguments->out.empty()) {
      throw UserError("--out: takes one spec, since each has its own result folder");
    }
    for (const std::string& file : arguments->specs) run_file(file, *arguments, verbs);
  });
}

void add_validate(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("validate", "Checks experiments without running them");
  verb->add_option("SPEC", arguments->specs, "experiment files (YAML)")->required();
  add_override_options(*verb, arguments->overrides);
  verb->footer("Examples:\n  kvlab validate experiments/*.yaml\n  kvlab validate my.yaml --set axes.budget=64");
  verb->callback([arguments] {
    for (const std::string& file : arguments->specs) {
      fmt::print("{}\n", validate_experiment(load_named_spec(file, arguments->overrides.texts())));
    }
  });
}

}  // namespace kv
