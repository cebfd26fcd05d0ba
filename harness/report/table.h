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
  bool bold = false;       // the best of its column; a difference whose interval excludes zero
};

struct TableView {
  std::string name{}, title{};
  std::vector<std::string> header{};
  std::vector<std::vector<TableCell>> rows{};
  std::vector<std::string> notes{};  // samples, what was averaged, skipped cases, the paper's source
};

// Ours and the paper's number of a cell stand in neighbouring columns; a row that only the paper has is shown with its
// number alone. Ties for the best value are all marked; in a table of differences those whose interval excludes zero.
// A table without rows says which metric had none.
TableView build_table(const TablePlan& plan, const std::map<std::string, PaperBlock>& paper, const RowTable& rows);

std::string to_markdown(const TableView& table);
std::string to_latex(const TableView& table);  // needs \usepackage{booktabs}
std::string to_html(const TableView& table);

// Fixed digits, none from 1e5 on; from 1e9 on, and where it would read as zero, `digits` significant ones (1.23e+09).
std::string format_number(double value, int digits);

}  // namespace kv
