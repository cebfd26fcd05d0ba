#pragma once

#include <string>
#include <vector>

namespace kv {

struct ReportText {
  std::string title{};
  std::string question{};
  std::string spec{};      // the resolved spec, shown as it is
  std::string manifest{};  // JSON text of manifest.json; empty: no such section
};

struct HtmlPlot {
  std::string name{}, title{};
  std::string svg{};                 // empty: nothing was drawn
  std::vector<std::string> notes{};  // or why not
};

struct HtmlPage {
  std::vector<std::string> verdicts;  // HTML, in order
  std::vector<std::string> tables;    // HTML, in order
  std::vector<HtmlPlot> plots;
  std::vector<std::string> skipped;  // one line a case
  std::string rows = "rows.csv";     // the file that the page links to
};

// One self-contained page: no script, no network, inline style and SVG; light and dark; works from disk.
// A manifest that is no JSON object throws UserError.
std::string to_html(const ReportText& text, const HtmlPage& page);

}  // namespace kv
