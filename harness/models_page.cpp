#include "harness/models_page.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/files.h"
#include "harness/report/side_by_side.h"
#include "harness/result_origin.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "harness/spec/spec_reader.h"
#include "harness/spec/spec_text.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// That with the most samples, of these the last by name.
std::optional<fs::path> largest_result(const std::string& experiment, const fs::path& results) {
  std::optional<fs::path> largest;
  int most = 0;
  for (const ResultOrigin& origin : results_of(experiment, results)) {
    if (!fs::exists(origin.folder / "spec.yaml") || !fs::exists(stored_rows(origin.folder / "rows.csv"))) continue;
    const int samples = load_spec(origin.folder / "spec.yaml").samples;
    if (samples < most) continue;
    most = samples;
    largest = origin.folder;
  }
  return largest;
}

ModelResult read_result(const fs::path& folder) {
  Spec spec = load_spec(folder / "spec.yaml");
  ModelResult result{.folder = folder.filename().string(),
                     .title = spec.title,
                     .samples = std::to_string(spec.samples),
                     .report = std::move(spec.report),
                     .rows = read_rows(folder / "rows.csv")};
  if (!result.rows.rows.empty()) result.model = result.rows.rows.front().model;
  return result;
}

// A spec of experiments/ that has a result.
struct Experiment {
  std::string name, base{};  // base: of which experiment it says that it is `like` it; empty: of none
  fs::path result{};
  std::map<std::string, std::string> keys{};  // of the result's spec: all that its rows depend on

  std::string model() const {
    const auto found = keys.find("model");
    return found == keys.end() ? "" : found->second;
  }
};

std::vector<Experiment> experiments_with_results(const fs::path& specs, const fs::path& results) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(specs)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Experiment> all;
  for (const fs::path& file : files) {
    const auto result = largest_result(file.stem().string(), results);
    if (!result) continue;
    all.push_back({.name = file.stem().string(),
                   .base = fs::path(base_of_spec(file)).stem().string(),
                   .result = *result,
                   .keys = load_spec(*result / "spec.yaml").row_keys});
  }
  return all;
}

int64_t keys_in_common(const Experiment& one, const Experiment& other) {
  return std::count_if(one.keys.begin(), one.keys.end(), [&](const auto& entry) {
    const auto found = other.keys.find(entry.first);
    return found != other.keys.end() && found->second == entry.second;
  });
}

// What the same was asked of another model: where the spec that one is like has variants, that variant which agrees
// with it in the most keys, and the spec itself before any that agrees in no more. Null: there is none.
const Experiment* counterpart(const Experiment& of, const std::vector<Experiment>& all) {
  const auto base = std::find_if(all.begin(), all.end(), [&](const Experiment& one) { return one.name == of.base; });
  if (base == all.end() || base->model() == of.model()) return nullptr;
  const Experiment* closest = &*base;
  for (const Experiment& variant : all) {
    if (variant.base != of.base || variant.model() != base->model()) continue;
    if (keys_in_common(variant, of) > keys_in_common(*closest, of)) closest = &variant;
  }
  return closest;
}

// Whether a page that names one model can speak for all rows.
bool is_of_one_model(const ModelResult& result) {
  return !result.model.empty() && std::all_of(result.rows.rows.begin(), result.rows.rows.end(),
                                              [&](const Row& row) { return row.model == result.model; });
}

}  // namespace

std::string models_page(const fs::path& results) {
  const fs::path specs = results / ".." / "experiments";
  if (!fs::is_directory(specs)) return "";
  const std::vector<Experiment> all = experiments_with_results(specs, results);
  std::vector<ModelPair> pairs;
  for (const Experiment& second : all) {
    const Experiment* const first = counterpart(second, all);
    if (!first) continue;
    ModelPair pair{.first = read_result(first->result), .second = read_result(second.result)};
    if (!is_of_one_model(pair.first) || !is_of_one_model(pair.second) || pair.first.model == pair.second.model)
      continue;
    pairs.push_back(std::move(pair));
  }
  return side_by_side_markdown(pairs);
}

void write_models_page(const fs::path& results, const std::string& text) {
  const fs::path page = results / "models.md";
  if (!text.empty()) {
    write_atomically(page, text);
  } else if (fs::exists(page) && read_file(page).starts_with(kSideBySideStart)) {
    remove_file(page);
  }
}

}  // namespace kv
