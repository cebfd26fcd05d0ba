#include "harness/models_page.h"

#include <algorithm>
#include <optional>
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

// Whether a page that names one model can speak for all rows.
bool is_of_one_model(const ModelResult& result) {
  return !result.model.empty() && std::all_of(result.rows.rows.begin(), result.rows.rows.end(),
                                              [&](const Row& row) { return row.model == result.model; });
}

}  // namespace

std::string models_page(const fs::path& results) {
  const fs::path specs = results / ".." / "experiments";
  if (!fs::is_directory(specs)) return "";
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(specs)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<ModelPair> pairs;
  for (const fs::path& file : files) {
    const auto second = largest_result(file.stem().string(), results);
    const std::string base = second ? base_of_spec(file) : "";
    if (base.empty()) continue;
    const auto first = largest_result(fs::path(base).stem().string(), results);
    if (!first) continue;
    ModelPair pair{.first = read_result(*first), .second = read_result(*second)};
    if (!is_of_one_model(pair.first) || !is_of_one_model(pair.second) || pair.first.model == pair.second.model)
      continue;
    pairs.push_back(std::move(pair));
  }
  return pairs.empty() ? "" : side_by_side_markdown(pairs);
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
