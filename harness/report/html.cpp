#include "harness/report/html.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "harness/report/escape.h"
#include "kernels/error.h"

namespace kv {
namespace {

// Plots keep a white ground in the dark, where their ink would not be read.
constexpr const char* kStyle =
    R"(:root { color-scheme: light dark; --ink: #1b1b1b; --ground: #fff; --soft: #f3f4f6; --line: #c9ccd1;
  --quiet: #55595f; --link: #0b57a4; --best: #e3f1e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --ground: #15171a; --soft: #22262b; --line: #444a52;
  --quiet: #a9b0b8; --link: #8ec2ff; --best: #1f3a28; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 72rem; color: var(--ink); background: var(--ground);
  font: 1rem/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.5rem; padding-bottom: 0.2rem; border-bottom: 1px solid var(--line); }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; padding: 0; list-style: none; }
.question { font-size: 1.1rem; white-space: pre-line; max-width: 50rem; }
figure { margin: 1.5rem 0 2rem; }
figcaption { color: var(--quiet); font-size: 0.875rem; margin-top: 0.4rem; max-width: 60rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.4rem; }
th, td { padding: 0.3rem 0.75rem; border-bottom: 1px solid var(--line); text-align: left; font-weight: 400; }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; vertical-align: bottom; }
.number { text-align: right; white-space: nowrap; }
td small { color: var(--quiet); font-size: 0.8rem; }
td strong { background: var(--best); padding: 0 0.2rem; }
.paper { font-style: italic; color: var(--quiet); }
.skipped { color: var(--quiet); max-width: 22rem; }
.plot { background: #fff; border: 1px solid var(--line); border-radius: 4px; padding: 0.5rem; display: inline-block;
  max-width: 100%; }
.plot svg { display: block; max-width: 100%; height: auto; }
pre { background: var(--soft); padding: 0.75rem 1rem; overflow-x: auto; font-size: 0.85rem; line-height: 1.4; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1rem; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; font-family: ui-monospace, "DejaVu Sans Mono", monospace;
  font-size: 0.875rem; }
summary { cursor: pointer; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } }
thead th.group { text-align: center; border-bottom: 1px solid var(--line); }
@page { size: A4; margin: 14mm 12mm; }
@page wide { size: A4 landscape; margin: 12mm; }
@media print {
  :root { color-scheme: light; --ink: #000; --ground: #fff; --soft: #fff; --line: #999; --quiet: #333; --link: #000;
    --best: #fff; }
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  nav { display: none; }
  .scroll, pre { overflow: visible; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: 0; font-size: 7.5pt; }
  table { width: 100%; font-size: 8pt; }
  figure:has(table.wide) { page: wide; }
  table.wide { font-size: 5.5pt; }
  th, td { padding: 0.12rem 0.3rem; }
  table.wide th, table.wide td { padding: 0.1rem 0.15rem; }
  table.wide th, .skipped { overflow-wrap: anywhere; }
  .number { white-space: normal; }
  td small { display: inline-block; font-size: inherit; }
  thead { display: table-header-group; }
  tr { break-inside: avoid; }
  h2, caption { break-after: avoid; }
  .plot { display: block; border: 0; padding: 0; break-inside: avoid; }
  .plot svg { max-width: 100%; max-height: 235mm; margin: 0 auto; }
}
)";

std::string labelled(const HtmlPlot& plot) {
  std::string svg = plot.svg;
  return svg.insert(std::string_view("<svg").size(), " role=\"img\" aria-label=\"" + escape_html(plot.title) + "\"");
}

std::string plot_section(const HtmlPlot& plot) {
  std::string out = "<figure id=\"" + plot.name + "\">\n";
  std::string caption = "<strong>" + escape_html(plot.title) + "</strong>";
  for (const std::string& note : plot.notes) caption += "<br>\n" + escape_html(note);
  if (!plot.svg.empty()) {
    out += "<div class=\"plot\">" + labelled(plot) + "</div>\n";
    caption += "<br>\n";
    for (const char* type : {"svg", "pdf"}) {
      caption += fmt::format("<a href=\"{0}.{1}\">{0}.{1}</a> ", plot.name, type);
    }
  }
  return out + "<figcaption>" + caption + "</figcaption>\n</figure>\n";
}

void flatten(const nlohmann::ordered_json& value, const std::string& path, std::string& out) {
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      flatten(item, path.empty() ? key : fmt::format("{}.{}", path, key), out);
    }
    return;
  }
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.size() > 2000) return;  // the resolved spec has its own section
  out += "<dt>" + escape_html(path) + "</dt><dd>" + escape_html(text) + "</dd>\n";
}

std::string manifest_section(const std::string& manifest) {
  nlohmann::ordered_json json;
  try {
    json = nlohmann::ordered_json::parse(manifest);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("manifest.json: {}", printable(error.what())));
  }
  if (!json.is_object()) throw UserError("manifest.json: expected a JSON object");
  // The spec text is shown below in full.
  json.erase("spec");
  std::string rows;
  flatten(json, "", rows);
  return "<h2 id=\"manifest\">How it was made</h2>\n<dl>\n" + rows + "</dl>\n";
}

// escape_html() joins lines; listings keep theirs.
std::string escape_lines(const std::string& text) {
  std::string out;
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    out += escape_html(std::string_view(text).substr(start, end - start)) + "\n";
    start = end + 1;
  }
  return out;
}

}  // namespace

std::string to_html(const ReportText& text, const HtmlPage& page) {
  const std::string title = escape_html(text.title);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      title + "</title>\n<style>\n" + kStyle + "</style>\n</head>\n<body>\n<main>\n<h1>" + title + "</h1>\n";
  if (!text.question.empty()) out += "<p class=\"question\">" + escape_lines(text.question) + "</p>\n";
  out += "<nav aria-label=\"Sections\"><ul>";
  if (!page.verdicts.empty()) out += "<li><a href=\"#verdicts\">Verdicts</a></li>";
  if (!page.tables.empty()) out += "<li><a href=\"#tables\">Tables</a></li>";
  if (!page.plots.empty()) out += "<li><a href=\"#plots\">Plots</a></li>";
  if (!page.skipped.empty()) out += "<li><a href=\"#skipped\">Skipped cases</a></li>";
  if (!text.manifest.empty()) out += "<li><a href=\"#manifest\">How it was made</a></li>";
  if (!text.spec.empty()) out += "<li><a href=\"#spec\">Spec</a></li>";
  const std::string rows = escape_html(page.rows);
  out += "<li><a href=\"" + rows + "\">" + rows +
         "</a></li><li><a href=\"table.md\">table.md</a></li>"
         "<li><a href=\"table.tex\">table.tex</a></li></ul></nav>\n";
  if (!page.verdicts.empty()) out += "<h2 id=\"verdicts\">Verdicts</h2>\n";
  for (const std::string& verdict : page.verdicts) out += verdict;
  if (!page.tables.empty()) out += "<h2 id=\"tables\">Tables</h2>\n";
  for (const std::string& table : page.tables) out += table;
  if (!page.plots.empty()) out += "<h2 id=\"plots\">Plots</h2>\n";
  for (const HtmlPlot& plot : page.plots) out += plot_section(plot);
  if (!page.skipped.empty()) {
    out += "<h2 id=\"skipped\">Skipped cases</h2>\n<ul>\n";
    for (const std::string& line : page.skipped) out += "<li>" + escape_html(line) + "</li>\n";
    out += "</ul>\n";
  }
  if (!text.manifest.empty()) out += manifest_section(text.manifest);
  if (!text.spec.empty()) {
    out +=
        "<h2 id=\"spec\">Spec</h2>\n<details open><summary>The resolved spec of this run</summary>\n<pre "
        "tabindex=\"0\">" +
        escape_lines(text.spec) + "</pre></details>\n";
  }
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace kv
