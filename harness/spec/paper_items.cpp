#include "harness/spec/paper_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "harness/files.h"
#include "harness/spec/map_reader.h"
#include "kernels/error.h"
#include "sim/policy/spelling.h"

namespace kv {
namespace {

PaperItem read_item(MapReader map, const std::string& paper) {
  PaperItem item{.paper = paper};
  item.name = map.required_text("item", "as the paper calls it: Table 2");
  item.measures = map.required_text("measures", "in a few words");
  item.missing = map.text("missing", "", "why no experiment repeats it");
  map.finish();
  return item;
}

void read_paper(MapReader map, PaperInventory& inventory) {
  const std::string paper = map.required_text("paper", "its number");
  map.required_text("title", "in short");
  const YAML::Node items = map.require("items", "list", "its tables and figures");
  map.finish();
  if (!items.IsSequence()) map.fail("items", "expected a list");
  inventory.papers.push_back(paper);
  for (const YAML::Node& node : items) {
    inventory.items.push_back(read_item(MapReader(map.document(), node, fmt::format("paper '{}'", paper)), paper));
  }
}

}  // namespace

void PaperInventory::check(const std::string& item, const std::string& where) const {
  const bool ours = std::none_of(papers.begin(), papers.end(),
                                 [&](const std::string& paper) { return item.starts_with(paper + " "); });
  std::vector<std::string> known;
  for (const PaperItem& listed : items) known.push_back(listed.full_name());
  if (ours || std::find(known.begin(), known.end(), item) != known.end()) return;
  throw UserError(fmt::format("{}: verdict '{}': no such item of the paper{}; they are listed in papers/items.yaml",
                              where, item, did_you_mean(item, known)));
}

PaperInventory load_paper_items(const std::filesystem::path& file) {
  const YamlDocument document(read_file(file), file.string());
  MapReader map(document, document.root(), "");
  const YAML::Node papers = map.require("papers", "list", "{paper, title, items}");
  map.finish();
  if (!papers.IsSequence()) map.fail("papers", "expected a list");
  PaperInventory inventory;
  for (const YAML::Node& node : papers) read_paper(MapReader(document, node, "paper"), inventory);
  std::set<std::string> seen;
  for (const PaperItem& item : inventory.items) {
    if (!seen.insert(item.full_name()).second) {
      throw UserError(fmt::format("{}: '{}' is listed twice", file.string(), item.full_name()));
    }
  }
  return inventory;
}

}  // namespace kv
