#include "harness/report/index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "harness/report/escape.h"

namespace kv {
namespace {

constexpr int kThumbnail = 260;  // pixels

std::string line_of(const IndexEntry& entry, const std::string& specs) {
  const std::string plot =
      entry.plot.empty() ? ""
                         : fmt::format("<a href=\"{0}/table.md\"><img src=\"{0}/{1}\" width=\"{2}\" alt=\"{3}\"></a>",
                                       entry.folder, entry.plot, kThumbnail, escape_html(entry.title));
  std::string what = fmt::format("[**{}**]({}/table.md)", escape_markdown(entry.title), entry.folder);
  if (!entry.question.empty()) what += "<br>" + escape_markdown(entry.question);
  std::vector<std::string> paper;
  for (const std::string& item : entry.paper) paper.push_back(escape_markdown(item));
  const std::string spec = entry.spec.empty() ? "" : fmt::format("[{0}]({1}/{0})", entry.spec, specs);
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", what, fmt::join(paper, "<br>"), spec, entry.samples,
                     escape_markdown(entry.device), entry.commit.substr(0, 7), entry.date.substr(0, 10), plot);
}

}  // namespace

std::string index_markdown(const std::vector<IndexEntry>& entries, const std::string& specs) {
  std::string out = std::string(kIndexStart) +
                    " from each folder's spec and manifest; do not edit. A folder's "
                    "`index.html`, with all plots, is drawn by `kvlab report FOLDER`.\n\n"
                    "| what, and its question | paper | spec | n | device | commit | date | first plot |\n"
                    "|:---|:---|:---|---:|:---|:---|:---|:---|\n";
  for (const IndexEntry& entry : entries) out += line_of(entry, specs);
  return out;
}

}  // namespace kv
