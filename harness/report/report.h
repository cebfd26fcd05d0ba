#pragma once

#include <filesystem>
#include <string>

#include "harness/report/html.h"
#include "harness/report/plan.h"

namespace kv {

// Draws rows, packed or not, into a folder: table.md, table.tex, <plot>.{svg,pdf}, index.html. A pure function of the
// rows, the plan and the text: the same ones give the same bytes. Returns the Markdown of all tables.
std::string write_report(const std::filesystem::path& rows_file, const std::filesystem::path& folder,
                         const ReportPlan& plan, const ReportText& text);

}  // namespace kv
