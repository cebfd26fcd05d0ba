#include "harness/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/files.h"
#include "harness/report/cells.h"
#include "harness/report/pdf.h"
#include "harness/report/plot.h"
#include "harness/report/svg.h"
#include "harness/report/table.h"
#include "harness/report/verdict.h"
#include "harness/rows.h"
#include "harness/rows_file.h"

namespace kv {
namespace {

// One line a case and reason, samples counted.
std::vector<std::string> list_skipped(const RowTable& table) {
  std::vector<std::pair<std::string, int>> lines;
  for (const Row& row : table.rows) {
    if (row.skipped.empty()) continue;
    std::string line = row.policy;
    const auto add = [&line](const std::string& part) {
      if (!part.empty()) line += (line.empty() ? "" : ", ") + part;
    };
    add(row.data);
    for (std::size_t i = 0; i < table.axes.size(); ++i) {
      if (!row.axes[i].empty()) add(table.axes[i] + "=" + row.axes[i]);
    }
    add(row.metric);
    line += ": " + row.skipped;
    const auto place = std::find_if(lines.begin(), lines.end(), [&](const auto& known) { return known.first == line; });
    if (place == lines.end()) {
      lines.emplace_back(line, 1);
    } else {
      ++place->second;
    }
  }
  std::vector<std::string> out;
  out.reserve(lines.size());
  for (const auto& [line, count] : lines) out.push_back(count == 1 ? line : fmt::format("{} ({} rows)", line, count));
  return out;
}

// When the rows were made; empty where the manifest does not say, or is none.
std::string date_of(const std::string& manifest) {
  const nlohmann::json json = nlohmann::json::parse(manifest, nullptr, false);
  return json.is_object() && json.contains("date") && json["date"].is_string() ? json["date"].get<std::string>() : "";
}

}  // namespace

std::string write_report(const std::filesystem::path& rows_file, const std::filesystem::path& folder,
                         const ReportPlan& plan, const ReportText& text) {
  return write_report(read_rows(rows_file), stored_rows(rows_file).filename().string(), folder, plan, text);
}

std::string write_report(const RowTable& rows, const std::string& rows_file, const std::filesystem::path& folder,
                         const ReportPlan& plan, const ReportText& text) {
  HtmlPage page;
  std::string markdown;
  std::string latex = "% Needs \\usepackage{booktabs}.\n";
  const std::string date = date_of(text.manifest);
  for (const VerdictPlan& verdict : plan.verdicts) {
    check_fixed(verdict, date);
    const int number = static_cast<int>(page.verdicts.size()) + 1;
    const TableView view = verdict_view(verdict, judge(verdict, plan, rows), number);
    markdown += (markdown.empty() ? "" : "\n") + to_markdown(view);
    page.verdicts.push_back(to_html(view));
  }
  for (const TablePlan& table : plan.tables) {
    const TableView view = build_table(table, plan.paper, rows);
    markdown += (markdown.empty() ? "" : "\n") + to_markdown(view);
    latex += "\n" + to_latex(view);
    page.tables.push_back(to_html(view));
  }
  page.skipped = list_skipped(rows);
  page.rows = rows_file;
  write_atomically(folder / "table.md", markdown);
  write_atomically(folder / "table.tex", latex);
  for (const PlotPlan& plot : plan.plots) {
    const Drawing drawing = draw(plot, rows, paper_values(plan, plot));
    HtmlPlot shown{.name = plot.name, .title = plot.title.empty() ? plot.name : plot.title, .notes = drawing.notes};
    if (drawing.empty.empty()) {
      shown.svg = to_svg(drawing.picture, shown.title, fmt::format("p{}-", page.plots.size()));
      write_atomically(folder / (plot.name + ".svg"), to_svg(drawing.picture, shown.title));
      write_atomically(folder / (plot.name + ".pdf"), to_pdf(drawing.picture, shown.title));
    } else {
      shown.notes.push_back(drawing.empty);
    }
    page.plots.push_back(std::move(shown));
  }
  write_atomically(folder / "index.html", to_html(text, page));
  return markdown;
}

}  // namespace kv
