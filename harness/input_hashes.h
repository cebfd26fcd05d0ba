#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "harness/spec/grid.h"
#include "harness/spec/spec.h"

namespace kv {

// What an experiment reads beside its spec, by SHA-256. The same inputs, code and spec give the same rows.
struct InputHashes {
  using Named = std::vector<std::pair<std::string, std::string>>;  // name, SHA-256

  // A file that an allocation reads.
  struct Profile {
    std::string model;
    std::string file;  // without its folder
    std::string sha256;

    bool operator==(const Profile&) const = default;
  };

  Named models{};      // of a model's files, of traces, or of what random weights are drawn from
  Named tokenizers{};  // of tokenizer.json
  std::vector<Profile> profiles{};
  Named data{};  // of each entry's files; of a task, of the shipped texts that tasks draw from

  bool operator==(const InputHashes&) const = default;
};

std::string file_sha256(const std::filesystem::path& file);
// Of all that the spec names. UserError where something is missing.
InputHashes hash_inputs(const Spec& spec, const Grid& grid);

}  // namespace kv
