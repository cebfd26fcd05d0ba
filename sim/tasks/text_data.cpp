#include "sim/tasks/text_data.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/error.h"
#include "sim/io/stored_file.h"
#include "sim/io/strict_json.h"

namespace kv {
namespace {

std::string text_at(const nlohmann::json& record, const char* key, const std::string& where) {
  const auto found = record.find(key);
  if (found == record.end()) throw UserError(fmt::format("{}: \"{}\" is missing", where, key));
  if (!found->is_string() || found->get_ref<const std::string&>().empty())
    throw UserError(fmt::format("{}: \"{}\" is {}, expected a string with text", where, key, shown_json(*found)));
  return found->get<std::string>();
}

Document parse_document(const std::string& line, const std::string& where) {
  const auto record = parse_strict_json(line, where);
  if (!record.is_object())
    throw UserError(fmt::format("{}: {}, expected an object of text, source and license", where, shown_json(record)));
  return {text_at(record, "text", where), text_at(record, "source", where), text_at(record, "license", where)};
}

}  // namespace

std::vector<Document> load_documents(const std::filesystem::path& file) {
  std::istringstream stream(read_stored(file));
  std::vector<Document> documents;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number)
    documents.push_back(parse_document(line, fmt::format("{}:{}", file.string(), number)));
  if (documents.empty()) throw UserError(fmt::format("{}: is empty, expected one JSON document a line", file.string()));
  return documents;
}

TextData TextData::load(const std::filesystem::path& folder) {
  return {load_documents(folder / "books.jsonl"), load_documents(folder / "code.jsonl"),
          load_documents(folder / "gsm8k.jsonl")};
}

}  // namespace kv
