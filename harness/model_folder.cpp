#include "harness/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "harness/shipped.h"
#include "kernels/error.h"
#include "sim/io/gguf.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRepositoryPrefix = "models--";
constexpr std::string_view kFetchedModel = "smollm2-135m";  // by ./dev model, into a folder of this name

std::optional<fs::path> folder_in(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value ? std::optional<fs::path>(value) : std::nullopt;
}

fs::path cache_folder() {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto folder = folder_in(variable)) return *folder;
  }
  if (const auto folder = folder_in("HF_HOME")) return *folder / "hub";
  if (const auto folder = folder_in("XDG_CACHE_HOME")) return *folder / "huggingface/hub";
  return folder_in("HOME").value_or("/") / ".cache/huggingface/hub";
}

bool is_plain(std::string_view part) {
  return !part.empty() && part.front() != '.' && std::all_of(part.begin(), part.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

// OWNER/NAME, which is a path, too.
bool is_repository(std::string_view name) {
  const size_t slash = name.find('/');
  return slash != name.npos && is_plain(name.substr(0, slash)) && is_plain(name.substr(slash + 1));
}

fs::path repository_folder(const std::string& name) {
  const size_t slash = name.find('/');
  return cache_folder() / fmt::format("{}{}--{}", kRepositoryPrefix, name.substr(0, slash), name.substr(slash + 1));
}

}  // namespace

fs::path cached_model(const std::string& name) {
  if (!is_repository(name)) return {};
  const fs::path repository = repository_folder(name);
  std::ifstream refs(repository / "refs/main");
  std::string commit;
  refs >> commit;
  const fs::path snapshot = repository / "snapshots" / commit;
  std::error_code error;
  return is_plain(commit) && fs::is_directory(snapshot, error) ? snapshot : fs::path();
}

std::string absent_model(const std::string& name) {
  if (is_gguf(name)) {
    const bool fetched = fs::path(name).parent_path().filename() == kFetchedModel;
    return fmt::format("model '{}': no such file{}{}", name, fetched ? "; get it with: ./dev model " : "",
                       fetched ? kFetchedModel : "");
  }
  const std::string missing = fmt::format("model '{}': no such folder", name);
  if (!is_repository(name))
    return missing + ", expected one with config.json, a .gguf file, or OWNER/NAME of Hugging Face";
  return fmt::format("{}, and {} has no snapshot in refs/main; get it with: hf download {}", missing,
                     repository_folder(name).string(), name);
}

fs::path find_model(const std::string& name) {
  std::error_code error;
  if (fs::exists(name, error)) return name;
  if (fs::path folder = find_shipped(name); !folder.empty()) return folder;
  if (fs::path snapshot = cached_model(name); !snapshot.empty()) return snapshot;
  throw UserError(absent_model(name));
}

std::string model_name(const fs::path& path) {
  if (is_gguf(path)) return path.stem().string();
  const fs::path full = fs::weakly_canonical(path);
  const fs::path snapshots = full.parent_path();
  const std::string repository = snapshots.parent_path().filename().string();
  if (snapshots.filename() == "snapshots" && repository.starts_with(kRepositoryPrefix)) {
    return repository.substr(repository.rfind("--") + 2);
  }
  return full.filename().string();
}

}  // namespace kv
