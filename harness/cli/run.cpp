#include "harness/run.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>

#include "harness/cli/experiments.h"
#include "harness/cli/overrides.h"
#include "harness/cli/run_spec.h"
#include "harness/cli/verbs.h"
#include "harness/manifest.h"
#include "harness/notice.h"
#include "harness/protocols/protocol.h"
#include "harness/ranks/agreement.h"
#include "harness/ranks/join_ranks.h"
#include "harness/ranks/own_share.h"
#include "harness/spec/spec.h"
#include "kernels/error.h"
#include "sim/io/hash.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

struct RunArguments {
  std::vector<std::string> specs;
  Overrides overrides;
  std::string out, weights;
  double checkpoint_seconds = RunOptions{}.checkpoint_seconds;
  bool fresh = false;
  bool no_draw = false;
  bool quiet = false;
  bool stale = false;
};

Verbosity verbosity_of(const RunArguments& arguments) {
  return arguments.quiet ? Verbosity::kQuiet : Verbosity::kNormal;
}

constexpr const char* kResults = "results";  // where runs write to that name no folder

// Each result has settings of its own, which its manifest names.
void refuse_beside_stale(const RunArguments& arguments) {
  const bool given =
      !arguments.overrides.texts().empty() || !arguments.out.empty() || arguments.fresh || arguments.no_draw;
  if (given)
    throw UserError(
        "--stale: each result's manifest has its settings, expected no --set, --device, --out, --fresh "
        "or --no-draw");
}

RunOptions options_of(const Spec& spec, const RunArguments& arguments) {
  return {.out = arguments.out.empty() ? fs::path(kResults) / spec.name : fs::path(arguments.out),
          .start = arguments.fresh ? Start::kFresh : Start::kResume,
          .draw = arguments.no_draw ? Draw::kLater : Draw::kNow,
          .verbosity = verbosity_of(arguments),
          .checkpoint_seconds = arguments.checkpoint_seconds,
          .weights = arguments.weights,
          .overrides = arguments.overrides.texts()};
}

void require_learning(const Spec& spec, const std::string& file) {
  if (spec.protocol->learns) return;
  throw UserError(
      fmt::format("{}: kvlab train expects 'protocol: train'; this one is for kvlab {}", file, spec.protocol->verb));
}

// The ranks share the work; the first alone speaks of it, and all end as it does.
void run_file(const std::string& file, const RunArguments& arguments, bool learn, Ranks& ranks, Verbs& verbs) {
  std::optional<Spec> spec;
  agree(ranks, [&] {
    spec = load_named_spec(file, arguments.overrides.texts());
    if (learn) require_learning(*spec, file);
    // What runs the spec looks at it anyway, but there a rank that alone finds a mistake would leave the others
    // waiting.
    if (ranks.are_several()) validate_experiment(*spec);
  });
  require_same(ranks, "builds of kvlab", code_identity());
  require_same(ranks, file + ": specs", sha256_hex(spec->resolved));
  RunOptions options = options_of(*spec, arguments);
  options.ranks = &ranks;
  options.keeps_beside = learn;
  if (!ranks.is_first()) options.verbosity = Verbosity::kQuiet;
  run_spec(*spec, options, verbs);
  verbs.exit_code = std::stoi(ranks.gather(std::to_string(verbs.exit_code)).front());
}

void run_files(const RunArguments& arguments, bool learn, Verbs& verbs) {
  const std::unique_ptr<Ranks> ranks = join_ranks();
  take_own_share(*ranks);
  for (const std::string& file : arguments.specs) run_file(file, arguments, learn, *ranks, verbs);
}

}  // namespace

void run_spec(const Spec& spec, const RunOptions& options, Verbs& verbs) {
  const bool quiet = options.verbosity == Verbosity::kQuiet, drawn = options.draw == Draw::kNow;
  if (!quiet) notice(validate_experiment(spec));
  const RunSummary summary = run_experiment(spec, options);
  if (options.ranks && !options.ranks->is_first()) return;
  // Not fmt::print, which throws where nobody reads: the specs that follow are to run all the same.
  if (!quiet && drawn) std::fputs((summary.markdown + "\n").c_str(), stdout);
  for (const std::string& problem : summary.problems) notice(problem);
  const std::string line = fmt::format("{}: {} cases ({} from an earlier start), {} skipped, {} failed; {}", spec.name,
                                       summary.cases, summary.reused, summary.skipped, summary.failed,
                                       (options.out / (drawn ? "index.html" : "rows.csv")).string());
  if (!quiet || summary.failed > 0) notice(line);
  for (const fs::path& file : summary.weights) {
    if (!quiet) notice(fmt::format("weights: {}", file.string()));
  }
  // A run in which nothing could run is no success either.
  if (summary.failed > 0 || summary.skipped == summary.cases) verbs.exit_code = 1;
}

void add_run(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand("run", "Runs experiments: rows.csv, tables, plots and index.html of each");
  verb->add_option("SPEC", arguments->specs, "experiment files (YAML)")->required();
  verb->add_option("--out", arguments->out, "result folder (default: results/<spec name>)");
  add_override_options(*verb, arguments->overrides);
  verb->add_flag("--fresh", arguments->fresh, "starts over instead of keeping finished cases");
  verb->add_flag("--no-draw", arguments->no_draw, "rows only: kvlab report draws them later");
  verb->add_flag("--quiet", arguments->quiet, "no progress and no tables; problems are still shown");
  verb->add_flag("--stale", arguments->stale,
                 "only what is out of date in results/: sources, spec or inputs differ from the manifest's; with the "
                 "settings that it names");
  verb->footer(
      "Examples:\n"
      "  kvlab run experiments/quickstart.yaml\n"
      "  kvlab run experiments/001-table2.yaml --set samples=2 --set data.reason.tokens=4096 --out /tmp/t2\n"
      "  kvlab run experiments/001-table2.yaml --device cuda --out /tmp/t2-cuda\n"
      "  kvlab run my.yaml --set 'policies=[full, h2o]' --set policies.h2o.mode=original\n"
      "  kvlab run experiments/*.yaml --stale\n"
      "A killed run goes on where it stopped when it is started again.");
  verb->callback([arguments, &verbs] {
    if (arguments->stale) {
      refuse_beside_stale(*arguments);
      require_alone("kvlab run --stale");
      return refresh_results(arguments->specs, kResults, StaleAction::kRun, verbosity_of(*arguments), verbs);
    }
    if (arguments->specs.size() > 1 && !arguments->out.empty()) {
      throw UserError("--out: takes one spec, since each has its own result folder");
    }
    run_files(*arguments, false, verbs);
  });
}

void add_train(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand("train", "Trains what a policy decides by: its weights, and the curves of it");
  verb->add_option("SPEC", arguments->specs, "file (YAML) with protocol: train")->required()->expected(1);
  verb->add_option("--out", arguments->out, "result folder (default: results/<spec name>)");
  verb->add_option("--weights", arguments->weights,
                   "folder of the weights (default: learned/ in the model's; in the result folder where the model has "
                   "others already)");
  add_override_options(*verb, arguments->overrides);
  verb->add_flag("--fresh", arguments->fresh,
                 "starts over instead of going on from the last checkpoint, and writes over weights that are there");
  verb->add_option("--checkpoint", arguments->checkpoint_seconds,
                   "seconds from one checkpoint to the next: what a kill loses at most (default: 15)")
      ->check(CLI::Range(0.0, 1e9));
  verb->add_flag("--no-draw", arguments->no_draw, "rows only: kvlab report draws them later");
  verb->add_flag("--quiet", arguments->quiet, "no progress and no tables");
  verb->footer(
      "Examples:\n"
      "  kvlab train experiments/foresight-kv.yaml --out /tmp/curves\n"
      "  kvlab train my.yaml --set learn.steps=50 --out /tmp/curves --weights /tmp/weights\n"
      "A killed training goes on from its last checkpoint when it is started again. Weights of another one are\n"
      "written over with --fresh alone.");
  verb->callback([arguments, &verbs] { run_files(*arguments, true, verbs); });
}

void add_validate(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand("validate", "Checks experiments without running them");
  verb->add_option("SPEC", arguments->specs, "experiment files (YAML)")->required();
  add_override_options(*verb, arguments->overrides);
  verb->add_flag("--stale", arguments->stale, "says which results in results/ are out of date, and why");
  verb->footer(
      "Examples:\n  kvlab validate experiments/*.yaml\n  kvlab validate my.yaml --set axes.budget=64\n"
      "  kvlab validate experiments/*.yaml --stale");
  verb->callback([arguments, &verbs] {
    if (arguments->stale) {
      refuse_beside_stale(*arguments);
      return refresh_results(arguments->specs, kResults, StaleAction::kSay, Verbosity::kNormal, verbs);
    }
    for (const std::string& file : arguments->specs) {
      fmt::print("{}\n", validate_experiment(load_named_spec(file, arguments->overrides.texts())));
    }
  });
}

}  // namespace kv
