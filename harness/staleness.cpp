#include "harness/staleness.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/files.h"
#include "harness/input_hashes.h"
#include "harness/manifest.h"
#include "harness/report/report.h"
#include "harness/result_folder.h"
#include "harness/result_origin.h"
#include "harness/rows_file.h"
#include "harness/spec/grid.h"
#include "harness/spec/spec_reader.h"
#include "kernels/error.h"
#include "sim/io/hash.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Names of what is not the same in both; what only one has differs.
template <class Entries>
std::vector<std::string> differing(const Entries& now, const Entries& then) {
  std::vector<std::string> names;
  for (const auto& [name, value] : now) {
    const auto found = then.find(name);
    if (found == then.end() || found->second != value) names.push_back(name);
  }
  for (const auto& [name, value] : then) {
    if (!now.contains(name)) names.push_back(name);
  }
  return names;
}

std::map<std::string, std::string> hashes_in(const Json& manifest, const char* key) {
  std::map<std::string, std::string> hashes;
  const auto found = manifest.find(key);
  if (found == manifest.end() || !found->is_object()) return hashes;
  for (const auto& [name, hash] : found->items()) hashes[name] = hash.is_string() ? hash.get<std::string>() : "";
  return hashes;
}

std::map<std::string, std::string> profiles_in(const Json& manifest) {
  std::map<std::string, std::string> hashes;
  const auto found = manifest.find("profiles");
  if (found == manifest.end() || !found->is_array()) return hashes;
  for (const Json& profile : *found) {
    hashes[manifest_text_of(profile, "model") + "/" + manifest_text_of(profile, "file")] =
        manifest_text_of(profile, "sha256");
  }
  return hashes;
}

std::vector<std::string> differing_inputs(const Spec& spec, const Json& manifest) {
  const InputHashes inputs = hash_inputs(spec, make_grid(spec));
  const auto map_of = [](const InputHashes::Named& named) {
    return std::map<std::string, std::string>(named.begin(), named.end());
  };
  std::map<std::string, std::string> profiles;
  for (const InputHashes::Profile& profile : inputs.profiles) {
    profiles[profile.model + "/" + profile.file] = profile.sha256;
  }
  std::vector<std::string> names;
  const auto add = [&](const char* kind, const std::vector<std::string>& differ) {
    for (const std::string& name : differ) names.push_back(fmt::format("{} {}", kind, name));
  };
  add("model", differing(map_of(inputs.models), hashes_in(manifest, "models_sha256")));
  const auto add_if_recorded = [&](const char* kind, const char* key, const InputHashes::Named& now) {
    if (manifest.contains(key)) add(kind, differing(map_of(now), hashes_in(manifest, key)));
  };
  add_if_recorded("tokenizer", "tokenizers_sha256", inputs.tokenizers);
  add("profile", differing(profiles, profiles_in(manifest)));
  add_if_recorded("data", "data_sha256", inputs.data);
  return names;
}

// Those of the result's own spec; every key where it cannot be read any more.
std::vector<std::string> differing_keys(const fs::path& folder, const Spec& spec) {
  std::map<std::string, std::string> then;
  try {
    then = load_spec(folder / "spec.yaml").row_keys;
  } catch (const UserError&) {
  }
  return differing(spec.row_keys, then);
}

// Where nothing runs, rows are those of the file of timings, whatever the code.
std::vector<std::string> reasons_of_benchmarks(const Json& manifest, const Spec& spec) {
  const std::string now = sha256_hex(read_file(resolve_path(spec, spec.benchmarks)));
  const std::string then = manifest_text_of(manifest, "benchmarks_sha256");
  if (then.empty()) return {"made before its file of timings was recorded"};
  return then == now ? std::vector<std::string>{} : std::vector<std::string>{"the file of timings is another one"};
}

}  // namespace

ResultState check_result(const fs::path& folder, const Spec& spec) {
  const Json manifest = read_result_manifest(folder);
  ResultState state;
  if (!fs::exists(stored_rows(folder / "rows.csv"))) state.reasons.emplace_back("it has no rows");
  if (const auto keys = differing_keys(folder, spec); !keys.empty()) {
    state.reasons.push_back(fmt::format("the spec differs: {}", fmt::join(keys, ", ")));
  }
  if (!spec.benchmarks.text.empty()) {
    for (std::string& reason : reasons_of_benchmarks(manifest, spec)) state.reasons.push_back(std::move(reason));
  } else {
    const std::string sources = manifest_text_of(manifest, "sources_sha256");
    if (sources.empty()) {
      state.reasons.emplace_back("made before sources were recorded");
    } else if (sources != row_sources(spec.device)) {
      state.reasons.emplace_back("the sources that rows depend on differ");
    }
    if (const auto inputs = differing_inputs(spec, manifest); !inputs.empty()) {
      state.reasons.push_back(fmt::format("inputs differ: {}", fmt::join(inputs, ", ")));
    }
  }
  const fs::path own = folder / "spec.yaml";
  state.page_differs = !fs::exists(own) || read_file(own) != spec.resolved;
  return state;
}

std::string adopt_spec(const fs::path& folder, const Spec& spec) {
  const ResultFolder result(folder);
  if (const auto keys = differing_keys(folder, spec); !keys.empty()) {
    throw UserError(fmt::format("{}: its rows were made with another value of: {}; run the spec again", folder.string(),
                                fmt::join(keys, ", ")));
  }
  Json manifest = read_result_manifest(folder);
  manifest["spec_sha256"] = sha256_hex(spec.resolved);
  const std::string manifest_text = manifest.dump(2) + "\n";
  std::string tables;
  result.replace([&](const fs::path& files) {
    tables = write_report(
        folder / "rows.csv", files, spec.report,
        {.title = spec.title, .question = spec.question, .spec = spec.resolved, .manifest = manifest_text});
    write_atomically(files / "spec.yaml", spec.resolved);
    write_atomically(files / "manifest.json", manifest_text);
  });
  return tables;
}

}  // namespace kv
