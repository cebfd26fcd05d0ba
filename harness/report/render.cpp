#include <fmt/format.h>

#include "harness/report/escape.h"
#include "harness/report/table.h"

namespace kv {
namespace {

using Kind = TableCell::Kind;

constexpr std::size_t kWide = 9;  // columns: more need smaller letters on paper
constexpr const char* kDagger = "\xe2\x80\xa0";

bool is_numeric(const TableView& table, std::size_t column) {
  for (const auto& row : table.rows) {
    const Kind kind = row[column].kind;
    if (kind == Kind::kLabel || kind == Kind::kText) return false;
  }
  return true;
}

std::string markdown_cell(const TableCell& cell) {
  std::string text = escape_markdown(cell.text);
  if (cell.bold) text = "**" + text + "**";
  if (cell.differs) text += kDagger;
  return cell.interval.empty() ? text : text + " " + escape_markdown(cell.interval);
}

std::string latex_cell(const TableCell& cell) {
  std::string text = escape_latex(cell.text);
  if (cell.bold) text = "\\textbf{" + text + "}";
  if (cell.differs) text += "$^\\dagger$";
  return cell.interval.empty() ? text : text + " {\\scriptsize " + escape_latex(cell.interval) + "}";
}

std::string html_cell(const TableCell& cell) {
  std::string text = escape_html(cell.text);
  if (cell.bold) text = "<strong>" + text + "</strong>";
  if (cell.differs) text += kDagger;
  if (!cell.interval.empty()) text += " <small>" + escape_html(cell.interval) + "</small>";
  switch (cell.kind) {
    case Kind::kLabel:
      return "<th scope=\"row\">" + text + "</th>";
    case Kind::kNumber:
      return "<td class=\"number\">" + text + "</td>";
    case Kind::kPaper:
      return "<td class=\"number paper\">" + text + "</td>";
    case Kind::kSkipped:
      return "<td class=\"skipped\">" + text + "</td>";
    case Kind::kText:
      return "<td>" + text + "</td>";
    case Kind::kEmpty:
      return "<td class=\"number\">" + text + "</td>";
  }
  return "";
}

// The upper level of the head, and a rule under each group of several columns.
std::string latex_groups(const TableView& table) {
  if (table.groups.empty()) return "";
  std::string heads, rules;
  for (std::size_t i = 1; i < table.groups.front().first; ++i) heads += " & ";
  for (const HeadGroup& group : table.groups) {
    heads += fmt::format(" & \\multicolumn{{{}}}{{c}}{{{}}}", group.columns, escape_latex(group.text));
    if (group.columns > 1)
      rules += fmt::format("\\cmidrule(lr){{{}-{}}}", group.first + 1, group.first + group.columns);
  }
  return heads + " \\\\\n" + rules + "\n";
}

std::string html_head(const TableView& table) {
  const auto head = [&](std::size_t column, const std::string& text, int rows) {
    return fmt::format("<th scope=\"col\"{}{}>{}</th>", is_numeric(table, column) ? " class=\"number\"" : "",
                       rows > 1 ? " rowspan=\"2\"" : "", escape_html(text));
  };
  std::string upper, lower;
  if (table.groups.empty()) {
    for (std::size_t i = 0; i < table.header.size(); ++i) upper += head(i, table.header[i], 1);
    return "<thead><tr>" + upper + "</tr></thead>\n";
  }
  for (std::size_t i = 0; i < table.groups.front().first; ++i) upper += head(i, table.header[i], 2);
  for (const HeadGroup& group : table.groups) {
    upper += fmt::format("<th scope=\"colgroup\" class=\"group\" colspan=\"{}\">{}</th>", group.columns,
                         escape_html(group.text));
    for (std::size_t i = group.first; i < group.first + group.columns; ++i) lower += head(i, table.names[i], 1);
  }
  return "<thead><tr>" + upper + "</tr>\n<tr>" + lower + "</tr></thead>\n";
}

}  // namespace

std::string to_markdown(const TableView& table) {
  std::string out = "### " + escape_markdown(table.title) + "\n\n";
  if (!table.rows.empty()) {
    for (const std::string& name : table.header) out += "| " + escape_markdown(name) + " ";
    out += "|\n";
    for (std::size_t i = 0; i < table.header.size(); ++i) out += is_numeric(table, i) ? "|---:" : "|:---";
    out += "|\n";
    for (const auto& row : table.rows) {
      for (const TableCell& cell : row) out += "| " + markdown_cell(cell) + " ";
      out += "|\n";
    }
    out += "\n";
  }
  for (const std::string& note : table.notes) out += escape_markdown(note) + "  \n";
  return out;
}

std::string to_latex(const TableView& table) {
  std::string out = "\\begin{table}\n\\centering\n\\caption{" + escape_latex(table.title) + ".";
  for (const std::string& note : table.notes) out += " " + escape_latex(note);
  out += "}\n\\label{tab:" + table.name + "}\n";
  if (!table.rows.empty()) {
    out += "\\begin{tabular}{";
    for (std::size_t i = 0; i < table.header.size(); ++i) out += is_numeric(table, i) ? 'r' : 'l';
    out += "}\n\\toprule\n";
    const auto end_line = [&out](std::size_t i, std::size_t size) { out += i + 1 == size ? " \\\\\n" : " & "; };
    out += latex_groups(table);
    const std::vector<std::string>& names = table.groups.empty() ? table.header : table.names;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool label = !table.groups.empty() && i < table.groups.front().first;
      out += escape_latex(label ? table.header[i] : names[i]);
      end_line(i, names.size());
    }
    out += "\\midrule\n";
    for (const auto& row : table.rows) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        out += latex_cell(row[i]);
        end_line(i, row.size());
      }
    }
    out += "\\bottomrule\n\\end{tabular}\n";
  }
  return out + "\\end{table}\n";
}

std::string to_html(const TableView& table) {
  std::string out = "<figure id=\"" + table.name +
                    "\">\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" +
                    escape_html(table.title) + "\">\n<table" + (table.header.size() > kWide ? " class=\"wide\"" : "") +
                    ">\n<caption>" + escape_html(table.title) + "</caption>\n";
  if (!table.rows.empty()) {
    out += html_head(table) + "<tbody>\n";
    for (const auto& row : table.rows) {
      out += "<tr>";
      for (const TableCell& cell : row) out += html_cell(cell);
      out += "</tr>\n";
    }
    out += "</tbody>\n";
  }
  out += "</table>\n</div>\n<figcaption>";
  for (std::size_t i = 0; i < table.notes.size(); ++i) out += (i == 0 ? "" : "<br>\n") + escape_html(table.notes[i]);
  return out + "</figcaption>\n</figure>\n";
}

}  // namespace kv
