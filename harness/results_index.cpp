#include "harness/results_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/files.h"
#include "harness/models_page.h"
#include "harness/notice.h"
#include "harness/report/index.h"
#include "harness/report/verdict.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "harness/spec/paper_items.h"
#include "harness/spec/spec_reader.h"
#include "kernels/error.h"
#include "sim/io/strict_json.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

std::string text_at(const nlohmann::json& json, const std::vector<std::string>& path) {
  const nlohmann::json* place = &json;
  for (const std::string& key : path) {
    if (!place->is_object() || !place->contains(key)) return "";
    place = &place->at(key);
  }
  return place->is_string() ? place->get<std::string>() : "";
}

// The card where there is one, else the processor.
std::string device_of(const nlohmann::json& manifest) {
  for (const auto& path :
       {std::vector<std::string>{"machine", "gpu"}, {"benchmarks", "gpu"}, {"benchmarks", "device"}}) {
    std::string gpu = text_at(manifest, path);
    if (!gpu.empty()) return gpu;
  }
  const std::string device = text_at(manifest, {"device"});
  return device.empty() || device == "cpu" ? text_at(manifest, {"machine", "cpu"}) : device;
}

// What the rows of a result say, by the criteria of its spec.
std::vector<ItemVerdict> verdicts_of(const fs::path& folder, const Spec& spec, const std::string& date,
                                     const PaperInventory& inventory) {
  std::vector<ItemVerdict> said;
  if (spec.report.verdicts.empty()) return said;
  const RowTable rows = read_rows(folder / "rows.csv");
  for (const VerdictPlan& plan : spec.report.verdicts) {
    check_fixed(plan, date);
    const Outcome outcome = judge(plan, spec.report, rows).outcome;
    for (const std::string& item : plan.items) {
      inventory.check(item, plan.where);
      said.push_back({.item = item, .outcome = outcome, .beforehand = plan.beforehand});
    }
  }
  return said;
}

// UserError for an item that is missing by its list and has a verdict by a result.
std::vector<IndexItem> index_items(const PaperInventory& inventory, const std::vector<IndexEntry>& entries,
                                   const fs::path& list) {
  std::vector<IndexItem> items;
  for (const PaperItem& item : inventory.items) {
    const std::string name = item.full_name();
    for (const IndexEntry& entry : entries) {
      const bool answered = std::any_of(entry.verdicts.begin(), entry.verdicts.end(),
                                        [&](const ItemVerdict& said) { return said.item == name; });
      if (!answered || item.missing.empty()) continue;
      throw UserError(
          fmt::format("{}: '{}' is said to be missing, but {} has a verdict on it", list.string(), name, entry.folder));
    }
    items.push_back({.name = name, .measures = item.measures, .missing = item.missing});
  }
  return items;
}

IndexEntry entry_of(const fs::path& folder, const fs::path& specs, const PaperInventory& inventory) {
  const Spec spec = load_spec(folder / "spec.yaml");
  const fs::path manifest_file = folder / "manifest.json";
  const nlohmann::json manifest = parse_strict_json(read_file(manifest_file), manifest_file.string());
  IndexEntry entry{.folder = folder.filename().string(), .title = spec.title, .question = spec.question};
  for (const auto& [name, block] : spec.report.paper) {
    const std::string item = block.page.empty() ? block.table : block.table + ", page " + block.page;
    if (std::find(entry.paper.begin(), entry.paper.end(), item) == entry.paper.end()) entry.paper.push_back(item);
  }
  const std::string name = text_at(manifest, {"experiment"}) + ".yaml";
  if (fs::exists(specs / name)) entry.spec = name;
  entry.samples = spec.benchmarks.text.empty() ? std::to_string(spec.samples) : "";
  entry.device = device_of(manifest);
  entry.commit = text_at(manifest, {"benchmarks", "commit"});  // of the code that was timed
  if (entry.commit.empty()) entry.commit = text_at(manifest, {"commit"});
  entry.date = text_at(manifest, {"date"});
  entry.verdicts = verdicts_of(folder, spec, entry.date, inventory);
  for (const PlotPlan& plot : spec.report.plots) {
    if (!fs::exists(folder / (plot.name + ".svg"))) continue;
    entry.plot = plot.name + ".svg";
    break;
  }
  return entry;
}

}  // namespace

std::string index_text(const fs::path& results, bool has_models_page) {
  if (!fs::is_directory(results)) throw UserError(fmt::format("{}: no such folder", results.string()));
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(results)) {
    if (fs::exists(entry.path() / "spec.yaml") && fs::exists(entry.path() / "manifest.json")) {
      folders.push_back(entry.path());
    }
  }
  if (folders.empty()) throw UserError(fmt::format("{}: no folder with spec.yaml and manifest.json", results.string()));
  std::sort(folders.begin(), folders.end());
  std::vector<IndexEntry> entries;
  const fs::path specs = results / ".." / "experiments", list = specs / "papers" / "items.yaml";
  const PaperInventory inventory = fs::exists(list) ? load_paper_items(list) : PaperInventory{};
  for (const fs::path& folder : folders) entries.push_back(entry_of(folder, specs, inventory));
  return index_markdown(index_items(inventory, entries, list), entries, "../experiments",
                        has_models_page ? "models.md" : "");
}

void write_index(const fs::path& results) {
  const std::string models = models_page(results), index = index_text(results, !models.empty());
  write_models_page(results, models);
  write_atomically(results / "README.md", index);
}

void refresh_index(const fs::path& results) {
  const fs::path index = results / "README.md";
  if (!fs::exists(index) || !read_file(index).starts_with(kIndexStart)) return;
  try {
    write_index(results);
  } catch (const UserError& error) {
    notice(fmt::format("kvlab: {} stays as it was: {}", index.string(), error.what()));
  }
}

}  // namespace kv
