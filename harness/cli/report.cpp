#include "harness/report/report.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "harness/cli/verbs.h"
#include "harness/rows.h"
#include "harness/spec.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

void report(const fs::path& folder, const std::string& with) {
  const Spec spec = load_spec(with.empty() ? folder / "spec.yaml" : fs::path(with));
  const fs::path manifest = folder / "manifest.json";
  const ReportText text{.title = spec.title,
                        .question = spec.question,
                        .spec = spec.resolved,
                        .manifest = fs::exists(manifest) ? read_file(manifest) : ""};
  fmt::print("{}\n", write_report(folder, spec.report, text));
}

}  // namespace

void add_report(CLI::App& app, Verbs&) {
  struct Arguments {
    std::string folder, spec;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb =
      app.add_subcommand("report", "Redraws tables, plots and index.html of a result folder from its rows");
  verb->add_option("DIR", arguments->folder, "result folder")->required();
  verb->add_option("--spec", arguments->spec, "take tables and plots from this spec (default: DIR/spec.yaml)");
  verb->footer("Example:\n  kvlab report results/quickstart");
  verb->callback([arguments] { report(arguments->folder, arguments->spec); });
}

}  // namespace kv
