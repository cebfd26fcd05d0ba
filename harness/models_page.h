#pragma once

#include <filesystem>
#include <string>

namespace kv {

// The text of <results>/models.md: each result whose spec, in <results>/../experiments, is `like` another one, beside
// the result of that one, or of that one's variant which is like it, too, and has more keys in common with the first;
// both of one model, and not the same. Of several results of one spec that with the most samples, of these the last by
// name. Empty where nothing of any such pair can be compared. A function of these specs and of the results'
// specs, manifests and rows. UserError names a file that cannot be read.
std::string models_page(const std::filesystem::path& results);

// Writes such a text there; where it is empty, removes one that the tool has written.
void write_models_page(const std::filesystem::path& results, const std::string& text);

}  // namespace kv
