#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/experiments.h"
#include "harness/cli/inputs.h"
#include "harness/cli/overrides.h"
#include "harness/cli/verbs.h"
#include "harness/notice.h"
#include "harness/own_writer.h"
#include "harness/ranks/agreement.h"

namespace kv {
namespace {

struct WriteArguments {
  std::string spec;
  Overrides overrides;
  OwnWriterOptions options;
  bool quiet = false;
};

void report(const OwnWritten& written) {
  std::string line = fmt::format("{}: {} of {} traces in {} attempts", written.file.string(), written.traces,
                                 written.wanted, written.attempts);
  if (written.written_before > 0) line += fmt::format(" ({} from an earlier start)", written.written_before);
  if (written.traces < written.wanted) line += "; the attempts are used up";
  notice(line);
}

void run_write(WriteArguments& arguments) {
  if (arguments.quiet) arguments.options.verbosity = Verbosity::kQuiet;
  const Spec spec = load_named_spec(arguments.spec, arguments.overrides.texts());
  for (const OwnWritten& written : write_own_traces(spec, arguments.options)) {
    if (!arguments.quiet || written.traces < written.wanted) report(written);
  }
}

}  // namespace

void add_write(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<WriteArguments>();
  CLI::App* verb = app.add_subcommand("write", "Lets a spec's models write the traces that task own reads");
  verb->add_option("SPEC", arguments->spec, "file (YAML) with an entry 'task: own' of the data")->required();
  add_override_options(*verb, arguments->overrides);
  verb->add_option("--batch", arguments->options.batch, "texts that are written together (default: 8, on a GPU 64)")
      ->check(at_least(1));
  verb->add_option("--attempts", arguments->options.attempts, "texts that are begun at most (default: four a trace)")
      ->check(at_least(1));
  verb->add_flag("--fresh", arguments->options.fresh, "discards what was written before");
  verb->add_flag("--quiet", arguments->quiet, "no progress");
  verb->footer(
      "Examples:\n"
      "  kvlab write my.yaml\n"
      "  kvlab write my.yaml --device cuda --set samples=64\n"
      "The files lie beside the models, own/<prompts>.jsonl.xz. A killed writer goes on where it stopped.");
  verb->callback([arguments] {
    require_alone("kvlab write");
    run_write(*arguments);
  });
}

}  // namespace kv
