#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/report/plan.h"
#include "harness/rows.h"

namespace kv {

// One result of one model.
struct ModelResult {
  std::string folder{};
  std::string model{};  // as its rows name it
  std::string title{};
  std::string samples{};  // "64"
  ReportPlan report{};
  RowTable rows{};
};

// Two results of the same experiment, each of another model.
struct ModelPair {
  ModelResult first{}, second{};
};

inline constexpr std::string_view kSideBySideStart = "# Both models side by side\n\nWritten by `kvlab report --index`";

// The page as Markdown: of each pair a line a verdict, a line a check that decides one (a finding: in words, its
// numbers under both models, in which of them it holds, and whether they agree), and a line a ranked table (who leads,
// and by how much). Checks are the same where what they compare, in words, and their bound are; ranked tables where
// their names are. Pairs without either have no section, and a page without sections is empty.
std::string side_by_side_markdown(const std::vector<ModelPair>& pairs);

}  // namespace kv
