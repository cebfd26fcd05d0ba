#pragma once

#include <filesystem>
#include <string>

namespace kv {

// Returns the text of <results>/README.md, an index of the folders in `results` that hold a spec and a manifest, in the
// order of their names, and of the papers' items that <results>/../experiments/papers/items.yaml lists, if it is there.
// A function of these files, of the rows that decide verdicts and of which plots are there. Where there is a page of
// both models (harness/models_page.h), it is linked. UserError names a file that cannot be read.
std::string index_text(const std::filesystem::path& results, bool has_models_page);

// Writes it there, and beside it models.md.
void write_index(const std::filesystem::path& results);

// The same where an index that the tool has written is there and every folder can be read; else nothing but, in the
// latter case, a notice.
void refresh_index(const std::filesystem::path& results);

}  // namespace kv
