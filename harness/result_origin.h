#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace kv {

// The manifest of a result folder; UserError where it is no JSON object.
nlohmann::ordered_json read_result_manifest(const std::filesystem::path& folder);
// What it says under `key`; empty where that is no text.
std::string manifest_text_of(const nlohmann::ordered_json& manifest, const char* key);

// A result folder's manifest, as far as it says how the rows are made again.
struct ResultOrigin {
  std::filesystem::path folder{};
  std::string experiment{};              // name of the spec
  std::vector<std::string> overrides{};  // the --set texts
};

// UserError where the manifest is no JSON object, or does not say.
ResultOrigin read_origin(const std::filesystem::path& folder);

// The folders in `results` that an experiment of that name has written, in the order of their names; folders whose
// manifest cannot be read are none of them.
std::vector<ResultOrigin> results_of(const std::string& experiment, const std::filesystem::path& results);

}  // namespace kv
