#include "harness/results_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/files.h"
#include "harness/notice.h"
#include "harness/report/index.h"
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

IndexEntry entry_of(const fs::path& folder, const fs::path& specs) {
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
  for (const PlotPlan& plot : spec.report.plots) {
    if (!fs::exists(folder / (plot.name + ".svg"))) continue;
    entry.plot = plot.name + ".svg";
    break;
  }
  return entry;
}

}  // namespace

void write_index(const fs::path& results) {
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
  for (const fs::path& folder : folders) entries.push_back(entry_of(folder, results / ".." / "experiments"));
  write_atomically(results / "README.md", index_markdown(entries, "../experiments"));
}

void refresh_index_beside(const fs::path& folder) {
  const fs::path results = fs::absolute(folder).lexically_normal() / "..";
  const fs::path index = (results / "README.md").lexically_normal();
  if (!fs::exists(index) || !read_file(index).starts_with(kIndexStart)) return;
  try {
    write_index(results.lexically_normal());
  } catch (const UserError& error) {
    notice(fmt::format("kvlab: {} stays as it was: {}", index.string(), error.what()));
  }
}

}  // namespace kv
