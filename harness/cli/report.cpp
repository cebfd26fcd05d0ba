#include "harness/report/report.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "harness/cli/experiments.h"
#include "harness/cli/verbs.h"
#include "harness/files.h"
#include "harness/result_folder.h"
#include "harness/result_origin.h"
#include "harness/results_index.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "harness/spec/spec_reader.h"
#include "harness/staleness.h"
#include "kernels/error.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::string folder, spec, adopted;
  bool pack = false, unpack = false, index = false;
};

void report(const ReportArguments& arguments) {
  if (arguments.index) return write_index(arguments.folder);
  const fs::path folder = arguments.folder;
  if (arguments.spec.empty() && !fs::exists(folder / "spec.yaml")) {
    throw UserError(fmt::format("{}: no result folder, it has no spec.yaml; kvlab run writes one", folder.string()));
  }
  if (!arguments.adopted.empty()) {
    const Spec spec = load_named_spec(arguments.adopted, read_origin(folder).overrides);
    fmt::print("{}\n", adopt_spec(folder, spec));
    return;
  }
  if (!fs::is_directory(folder)) throw UserError(fmt::format("{}: no such folder", folder.string()));
  const ResultFolder alone(folder);  // no run moves its rows in meanwhile
  const Spec spec = load_spec(arguments.spec.empty() ? folder / "spec.yaml" : fs::path(arguments.spec));
  const fs::path manifest = folder / "manifest.json";
  const ReportText text{.title = spec.title,
                        .question = spec.question,
                        .spec = spec.resolved,
                        .manifest = fs::exists(manifest) ? read_file(manifest) : ""};
  if (arguments.pack) pack_rows(folder);  // first, so that index.html links to the file that stays
  if (arguments.unpack) unpack_rows(folder);
  fmt::print("{}\n", write_report(folder / "rows.csv", folder, spec.report, text));
}

}  // namespace

void add_report(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* verb =
      app.add_subcommand("report", "Redraws tables, plots and index.html of a result folder from its rows");
  verb->add_option("DIR", arguments->folder, "result folder; with --index, a folder of them")->required();
  CLI::Option* spec =
      verb->add_option("--spec", arguments->spec, "take tables and plots from this spec (default: DIR/spec.yaml)");
  CLI::Option* adopted =
      verb->add_option("--adopt", arguments->adopted,
                       "makes title, tables, plots, paper and verdict of this spec the result's own, "
                       "where all that rows depend on is the same")
          ->excludes(spec);
  CLI::Option* pack =
      verb->add_flag("--pack", arguments->pack, "replaces rows.csv by columns.csv.xz, which every verb reads as well");
  CLI::Option* unpack =
      verb->add_flag("--unpack", arguments->unpack, "replaces columns.csv.xz by the same rows.csv")->excludes(pack);
  verb->add_flag("--index", arguments->index,
                 "DIR holds result folders: writes DIR/README.md and DIR/models.md, which tell what the results say")
      ->excludes(spec, adopted, pack, unpack);
  verb->footer(
      "Examples:\n"
      "  kvlab report results/quickstart\n"
      "  kvlab report results/quickstart --pack\n"
      "  kvlab report results/quickstart --adopt experiments/quickstart.yaml\n"
      "  kvlab report --index results");
  verb->callback([arguments] { report(*arguments); });
}

}  // namespace kv
