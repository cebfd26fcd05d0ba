#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kv {

struct Document {
  std::string text;    // UTF-8
  std::string source;  // where it comes from, as "collection:path"
  std::string license;
};

// The text that tasks draw from: books.jsonl, code.jsonl and gsm8k.jsonl of a folder, one document a line as
// {"text", "source", "license"}, all strings. Order is that of the files, so that a seed always draws the same text.
// Each may lie packed instead (sim/io/stored_file.h).
struct TextData {
  std::vector<Document> books;
  std::vector<Document> code;
  std::vector<Document> math;

  // Throws UserError that starts with file:line for whatever is not such a record, and for a missing or empty file.
  static TextData load(const std::filesystem::path& folder);
};

std::vector<Document> load_documents(const std::filesystem::path& file);

}  // namespace kv
