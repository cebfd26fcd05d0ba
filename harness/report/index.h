#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/report/verdict_plan.h"

namespace kv {

// What a result says of an item, by name.
struct ItemVerdict {
  std::string item{};
  Outcome outcome = Outcome::kUntestable;
  bool beforehand = false;  // the criterion's age
};

// One result as the index of all shows it.
struct IndexEntry {
  std::string folder{};
  std::string title{}, question{};
  std::vector<std::string> paper{};  // "Table 2, page 9", one a block of the spec
  std::vector<ItemVerdict> verdicts{};
  std::string spec{};  // file name of the experiment
  std::string samples{}, device{}, commit{}, date{};
  std::string plot{};  // file name of the first plot; empty: none is drawn
};

// One table or figure of a paper as the index shows it.
struct IndexItem {
  std::string name{};  // "001 Table 2"
  std::string measures{};
  std::string missing{};  // why there is no result
};

inline constexpr std::string_view kIndexStart = "# Results\n\nWritten by `kvlab report --index`";

// The index as Markdown: a line an item, with what every result says of it, where there are items; then a line a
// result, with its first plot as a picture. `specs`: folder of the experiments, as a link from the index;
// `models_page`: file of the page that shows both models, empty where there is none.
std::string index_markdown(const std::vector<IndexItem>& items, const std::vector<IndexEntry>& entries,
                           const std::string& specs, const std::string& models_page);

}  // namespace kv
