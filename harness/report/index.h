#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kv {

// One result as the index of all shows it.
struct IndexEntry {
  std::string folder{};
  std::string title{}, question{};
  std::vector<std::string> paper{};  // "Table 2, page 9", one a block of the spec
  std::string spec{};                // file name of the experiment
  std::string samples{}, device{}, commit{}, date{};
  std::string plot{};  // file name of the first plot; empty: none is drawn
};

inline constexpr std::string_view kIndexStart = "# Results\n\nWritten by `kvlab report --index`";

// The index as Markdown: a line a result, with its first plot as a picture. `specs`: folder of the experiments, as a
// link from the index.
std::string index_markdown(const std::vector<IndexEntry>& entries, const std::string& specs);

}  // namespace kv
