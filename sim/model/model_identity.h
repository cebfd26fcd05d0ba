#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "sim/model/source_info.h"

namespace kv {

struct ModelConfig;

// Which model something is asked to serve, for what can be known before the model is loaded. What takes a look into
// its files is looked up when it is first asked for, and kept as long as the identity lives: whoever owns it says for
// how long the files stay as they are.
class ModelIdentity {
 public:
  struct Shape {
    int layers = 0;  // those replayed
    int kv_heads = 0;
    int q_heads = 0, head_dim = 0, width = 0;  // what learned weights must fit, too

    bool operator==(const Shape&) const = default;
  };

  // `files`: what a spec names, a folder or a GGUF file; empty for traces and random weights.
  ModelIdentity(std::filesystem::path files, std::function<Shape()> shape);

  const std::filesystem::path& files() const { return files_; }
  // Whether those are named and not there: whoever opens them says so, and nothing can be asked of them.
  bool is_absent() const;
  std::filesystem::path folder() const;    // that holds the model's profiles, too; empty where there are no files
  Shape shape() const;                     // throws what the function does
  const std::string& fingerprint() const;  // of the files (sim/model/model_files.h), which are required

 private:
  std::filesystem::path files_;
  std::function<Shape()> find_shape_;
  mutable std::optional<Shape> shape_;
  mutable std::string fingerprint_;
};

ModelIdentity::Shape shape_of(const ModelConfig& config);
// What a source of that shape says of itself, name and abilities aside.
SourceInfo info_of(const ModelIdentity::Shape& shape);

// The identity of a Hugging Face folder or a GGUF file.
ModelIdentity identity_of_files(const std::filesystem::path& files);

}  // namespace kv
