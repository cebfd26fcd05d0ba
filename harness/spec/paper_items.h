#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kv {

// A table, figure or statement of a paper.
struct PaperItem {
  std::string paper{};     // "001"
  std::string name{};      // "Table 2"
  std::string measures{};  // in a few words
  std::string missing{};   // why no experiment repeats it; empty where one does, or should

  std::string full_name() const { return paper + " " + name; }  // as verdicts call it
};

struct PaperInventory {
  std::vector<std::string> papers{};  // "001", in order
  std::vector<PaperItem> items{};

  // UserError at `where` for an item of one of these papers that is not listed, with the nearest that is. What belongs
  // to none of the papers is the caller's own.
  void check(const std::string& item, const std::string& where) const;
};

// {papers: [{paper: "001", title, items: [{item, measures, missing}]}]}. UserError as for a spec.
PaperInventory load_paper_items(const std::filesystem::path& file);

}  // namespace kv
