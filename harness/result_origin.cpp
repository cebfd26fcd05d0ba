#include "harness/result_origin.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "harness/files.h"
#include "kernels/error.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Of manifests that do not list them: kvlab run NAME --set 'a' --set 'b'.
std::vector<std::string> overrides_in(std::string_view command) {
  constexpr std::string_view kSet = " --set '";
  std::vector<std::string> texts;
  for (size_t at = command.find(kSet); at != command.npos;) {
    const size_t begin = at + kSet.size();
    const size_t next = command.find(std::string("'") + std::string(kSet), begin);
    const size_t end = next == command.npos ? command.rfind('\'') : next;
    if (end == command.npos || end < begin) break;
    texts.emplace_back(command.substr(begin, end - begin));
    at = next == command.npos ? next : next + 1;
  }
  return texts;
}

}  // namespace

nlohmann::ordered_json read_result_manifest(const fs::path& folder) {
  const fs::path file = folder / "manifest.json";
  Json manifest = Json::parse(read_file(file), nullptr, false);
  if (!manifest.is_object()) throw UserError(fmt::format("{}: expected a JSON object", file.string()));
  return manifest;
}

std::string manifest_text_of(const nlohmann::ordered_json& manifest, const char* key) {
  const auto found = manifest.find(key);
  return found != manifest.end() && found->is_string() ? found->get<std::string>() : "";
}

ResultOrigin read_origin(const fs::path& folder) {
  const Json manifest = read_result_manifest(folder);
  ResultOrigin origin{.folder = folder, .experiment = manifest_text_of(manifest, "experiment")};
  if (origin.experiment.empty()) {
    throw UserError(fmt::format("{}: names no experiment", (folder / "manifest.json").string()));
  }
  if (const auto listed = manifest.find("overrides"); listed != manifest.end() && listed->is_array()) {
    for (const Json& text : *listed) origin.overrides.push_back(text.is_string() ? text.get<std::string>() : "");
  } else {
    origin.overrides = overrides_in(manifest_text_of(manifest, "command"));
  }
  return origin;
}

std::vector<ResultOrigin> results_of(const std::string& experiment, const fs::path& results) {
  std::vector<ResultOrigin> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(results, error)) {
    if (!fs::exists(entry.path() / "manifest.json", error)) continue;
    try {
      ResultOrigin origin = read_origin(entry.path());
      if (origin.experiment == experiment) found.push_back(std::move(origin));
    } catch (const UserError&) {  // no result of ours
    }
  }
  std::sort(found.begin(), found.end(),
            [](const ResultOrigin& a, const ResultOrigin& b) { return a.folder < b.folder; });
  return found;
}

}  // namespace kv
