#include "harness/spec/report_plan.h"

#include <fmt/format.h>

namespace kv {
namespace {

// The maps of a list of the spec.
template <class Plan, class Read>
std::vector<Plan> read_list(MapReader& spec, const YAML::Node& list, const std::string& key, const Read& read) {
  std::vector<Plan> plans;
  if (!is_given(list)) return plans;
  if (!list.IsSequence()) spec.fail(key, fmt::format("expected a list, kvlab describe {} has the keys", key));
  for (const YAML::Node& node : list) plans.push_back(read(node));
  return plans;
}

}  // namespace

void check_measure(const ReportReader& map, const Measure& measure) {
  if (map.has("ratio") && measure.ratio.size() != 2) {
    map.fail("ratio", "expected two metrics, [numerator, denominator]");
  }
  if (measure.metrics.empty() == measure.ratio.empty()) map.fail_here("expected either 'metric' or 'ratio'");
}

ReportPlan read_report(MapReader& spec, const RowNames& names) {
  const YAML::Node tables = spec.find("tables", "list", "tables to print from the rows: kvlab describe tables");
  const YAML::Node plots = spec.find("plots", "list", "plots to draw from the rows: kvlab describe plots");
  const YAML::Node paper = spec.find("paper", "{name: block}", "published numbers to show beside ours, in blocks");
  const YAML::Node verdicts =
      spec.find("verdict", "list", "what the rows say of a paper's items, by criteria: kvlab describe verdicts");
  const YamlDocument& document = spec.document();
  ReportPlan plan;
  if (is_given(paper)) {
    if (!paper.IsMap()) spec.fail("paper", "expected a map of named blocks");
    for (const auto& entry : paper) {
      const std::string& name = entry.first.Scalar();
      plan.paper.emplace(
          name, read_paper(ReportReader(document, entry.second, fmt::format("paper block '{}'", name), names)));
    }
  }
  std::set<std::string> used_names = {"table", "index", "rows", "manifest", "spec"};  // taken by the report's own files
  plan.tables = read_list<TablePlan>(spec, tables, "tables", [&](const YAML::Node& node) {
    return read_table(ReportReader(document, node, "table", names), plan.paper, used_names);
  });
  plan.plots = read_list<PlotPlan>(spec, plots, "plots", [&](const YAML::Node& node) {
    return read_plot(ReportReader(document, node, "plot", names), used_names);
  });
  if (is_given(verdicts) && !verdicts.IsSequence()) {
    spec.fail("verdict", "expected a list, kvlab describe verdicts has the keys");
  }
  for (const YAML::Node& node : items_of(verdicts)) {
    plan.verdicts.push_back(read_verdict(MapReader(document, node, "verdict"), plan.tables));
  }
  return plan;
}

}  // namespace kv
