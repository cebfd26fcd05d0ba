#include "harness/compare.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/inputs.h"
#include "harness/cli/verbs.h"

namespace kv {

void add_compare(CLI::App& app, Verbs&) {
  struct CompareArguments {
    std::string a, b, format = "markdown";
    CompareOptions options;
  };
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* verb = app.add_subcommand("compare", "Compares two result folders, paired by sample: a verdict a row");
  verb->add_option("A", arguments->a, "result folder")->required();
  verb->add_option("B", arguments->b, "result folder")->required();
  verb->add_option("--tolerance", arguments->options.tolerance, "share of A's mean that counts as the same")
      ->check(at_least(0));
  verb->add_flag("--timings", arguments->options.timings, "timing rows, too");
  verb->add_option("--format", arguments->format, "markdown or csv")->check(any_word_of({"markdown", "csv"}));
  verb->footer(
      "Example:\n"
      "  kvlab compare results/quickstart /tmp/changed --tolerance 0.02\n"
      "The exit code says whether the comparison was made, not how it came out.");
  verb->callback([arguments] {
    const CompareResult result = compare(arguments->a, arguments->b, arguments->options);
    fmt::print("{}\n", arguments->format == "csv" ? to_csv(result) : to_markdown(result));
  });
}

}  // namespace kv
