#pragma once

#include <filesystem>
#include <string>

namespace kv {

// Returns the folder or GGUF file that a model's name on the command line means: that path, from here, from a folder
// above or from beside the program; else, for OWNER/NAME, the snapshot that refs/main names in the local Hugging Face
// cache. UserError that says where it looked and how to get the model.
std::filesystem::path find_model(const std::string& name);

// Returns the snapshot of OWNER/NAME in the local Hugging Face cache; empty where there is none, or the name is of
// another form. The cache is the first of HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub and ~/.cache/huggingface/hub whose variable is set.
std::filesystem::path cached_model(const std::string& name);

// Returns what to say of a model that is neither there nor cached: where it was looked for, and how to get it.
std::string absent_model(const std::string& name);

// Returns what rows call the model there: the folder's name, of a cached snapshot, whose folder is named by a commit,
// the repository's, and of a GGUF file its own without the ending, wherever a link of that name leads (in the cache to
// a file named by a hash).
std::string model_name(const std::filesystem::path& path);

}  // namespace kv
