#include "harness/spec/spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/benchmarks.h"
#include "harness/shipped.h"
#include "kernels/error.h"
#include "sim/io/stored_file.h"

namespace kv {

namespace fs = std::filesystem;

std::vector<std::string> Spec::axis_columns() const {
  if (!benchmarks.text.empty()) return {benchmark_axes().begin(), benchmark_axes().end()};
  std::vector<std::string> columns;
  for (const Axis& axis : axes) columns.insert(columns.end(), axis.columns.begin(), axis.columns.end());
  return columns;
}

std::vector<GivenParam> Spec::options_of(std::string_view protocol_key) const {
  const auto found = protocol_options.find(std::string(protocol_key));
  return found == protocol_options.end() ? std::vector<GivenParam>{} : found->second;
}

void Spec::refuse_key(std::string_view key, std::string_view message) const {
  const auto found =
      std::find_if(written.begin(), written.end(), [&](const GivenParam& known) { return known.key == key; });
  if (found == written.end()) return;
  throw UserError(fmt::format("{}: {} = {}: {}", found->where, key, found->text, message));
}

fs::path resolve_path(const Spec& spec, const Located& path, Packed packed) {
  fs::path wanted(path.text);
  std::error_code error;
  const auto is_there = [&](const fs::path& file) {
    return fs::exists(packed == Packed::kMayBe ? stored_file(file) : file, error);
  };
  if (wanted.is_absolute()) {
    if (is_there(wanted)) return wanted;
  } else {
    for (fs::path folder = fs::absolute(spec.file, error).parent_path();; folder = folder.parent_path()) {
      if (is_there(folder / wanted)) return folder / wanted;
      if (folder == folder.parent_path()) break;
    }
    if (is_there(wanted)) return wanted;
    if (fs::path shipped = find_shipped(wanted); !shipped.empty() && is_there(shipped)) return shipped;
  }
  throw UserError(
      fmt::format("{}: '{}': no such file or folder, looked beside the spec, here and beside the program, "
                  "and in every folder above these",
                  path.where, path.text));
}

}  // namespace kv
