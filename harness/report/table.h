#pragma once

#include <string>
#include <vector>

#include "harness/report/plan.h"
#include "harness/rows.h"

namespace kv {

// A table as a reader sees it, before it becomes Markdown, LaTeX or HTML. All text is raw: the renderers escape.
struct TableCell {
  enum class Kind { kLabel, kNumber, kPaper, kSkipped, kText, kEmpty };
  Kind kind = Kind::kEmpty;
  std::string text{};
  std::string interval{};  // "[1.251, 1.295]" or "± 0.012"
  bool bold = false;       // the best of its column, by the number alone
  bool differs = false;  // from the best, or from what a paired table compares with: the paired interval excludes zero
};

// A head over several columns.
struct HeadGroup {
  std::string text{};
  std::size_t first = 0, columns = 1;
};

struct TableView {
  std::string name{}, title{};
  std::vector<std::string> header{};  // a column's whole name
  // Where heads have two levels: the upper one over all columns but the first, and below it each column's own name.
  // Markdown, which has one level, keeps the whole names.
  std::vector<HeadGroup> groups{};
  std::vector<std::string> names{};
  std::vector<std::vector<TableCell>> rows{};
  std::vector<std::string> notes{};  // samples, what was averaged, skipped cases, the paper's source
};

// Ours and the paper's number of a cell stand in neighbouring columns; a row that only the paper has is shown with its
// number alone. Ties for the best value are all marked. A table without rows says which metric had none.
TableView build_table(const TablePlan& plan, const std::map<std::string, PaperBlock>& paper, const RowTable& rows);

// Rows of the CSV as they are.
TableView build_listing(const TablePlan& plan, const RowTable& rows);

std::string to_markdown(const TableView& table);
std::string to_latex(const TableView& table);  // needs \usepackage{booktabs}
std::string to_html(const TableView& table);

// Fixed digits, none from 1e5 on; from 1e9 on, and where it would read as zero, `digits` significant ones (1.23e+09).
std::string format_number(double value, int digits);

}  // namespace kv
