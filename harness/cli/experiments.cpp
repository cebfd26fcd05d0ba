#include "harness/cli/experiments.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/cli/compared_values.h"
#include "harness/shipped.h"
#include "harness/spec/spec_reader.h"
#include "kernels/error.h"
#include "sim/policy/spelling.h"

namespace kv {

std::vector<std::filesystem::path> experiment_files() {
  std::vector<std::filesystem::path> files;
  const std::filesystem::path folder = find_shipped("experiments");
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Spec load_named_spec(const std::string& file, std::span<const std::string> overrides) {
  std::error_code error;
  if (std::filesystem::exists(file, error)) {
    Spec spec = load_spec(file, overrides);
    check_compared_values(spec);
    return spec;
  }
  const std::string name = std::filesystem::path(file).stem().string();
  std::vector<std::string> names;
  for (const std::filesystem::path& known : experiment_files()) names.push_back(known.stem().string());
  const bool is_shipped = std::find(names.begin(), names.end(), name) != names.end();
  const std::string meant = is_shipped ? name : nearest(name, names);
  throw UserError(fmt::format(
      "{}: no such file{}", shown(file),
      meant.empty() ? "; kvlab new writes a spec to start from"
                    : fmt::format(", did you mean '{}'?",
                                  (find_shipped("experiments").lexically_normal() / (meant + ".yaml")).string())));
}

}  // namespace kv
