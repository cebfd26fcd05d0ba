#include "harness/spec/spec_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "harness/files.h"
#include "harness/spec/map_reader.h"
#include "kernels/error.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLike = "like";

std::string first_comment(std::string_view yaml) {
  std::string question;
  while (!yaml.empty()) {
    const size_t end = std::min(yaml.find('\n'), yaml.size());
    std::string_view line = yaml.substr(0, end);
    yaml.remove_prefix(std::min(end + 1, yaml.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const size_t start = line.find_first_not_of("# \t");
    if (line.empty() && question.empty()) continue;
    if (line.empty() || line[0] != '#') break;
    if (start == line.npos) continue;
    question += (question.empty() ? "" : " ") + std::string(line.substr(start));
  }
  return question;
}

std::string text_of_base(const MapReader& spec, const fs::path& base) {
  std::error_code error;
  if (!fs::exists(base, error)) spec.fail(kLike, "no such file beside this spec");
  try {
    return read_file(base);
  } catch (const UserError& failure) {
    spec.fail(kLike, failure.what());
  }
}

}  // namespace

SpecText read_spec_text(std::string_view yaml, const std::string& file, std::span<const std::string> overrides) {
  SpecText text{.document = YamlDocument(yaml, file), .question = first_comment(yaml)};
  MapReader spec(text.document, text.document.root(), "");
  if (spec.has(kLike)) {
    const fs::path base_file = fs::path(file).parent_path() / spec.required_text(kLike, "");
    const std::string base_yaml = text_of_base(spec, base_file);
    const YamlDocument base(base_yaml, base_file.string());
    if (MapReader(base, base.root(), "").has(kLike)) {
      spec.fail(kLike, "is like another spec itself, expected one that has every key in its own file");
    }
    text.document.inherit(base, kLike);
    if (text.question.empty()) text.question = first_comment(base_yaml);
    text.derived = true;
  }
  text.document.apply(overrides);
  return text;
}

std::string base_of_spec(const fs::path& file) {
  const YamlDocument document(read_file(file), file.string());
  MapReader spec(document, document.root(), "");
  return spec.has(kLike) ? spec.required_text(kLike, "") : "";
}

}  // namespace kv
