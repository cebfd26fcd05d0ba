#pragma once

#include <filesystem>
#include <string>

#include "harness/report/html.h"
#include "harness/report/plan.h"
#include "harness/rows.h"

namespace kv {

// Draws rows, which `rows_file` in the same folder has, into a folder: table.md, table.tex, <plot>.{svg,pdf},
// index.html. A pure function of the rows, the plan and the text: the same ones give the same bytes. Returns the
// Markdown of all tables.
std::string write_report(const RowTable& rows, const std::string& rows_file, const std::filesystem::path& folder,
                         const ReportPlan& plan, const ReportText& text);
// Of a file of rows, packed or not.
std::string write_report(const std::filesystem::path& rows_file, const std::filesystem::path& folder,
                         const ReportPlan& plan, const ReportText& text);

}  // namespace kv
