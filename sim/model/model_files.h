#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "sim/model/model_config.h"
#include "sim/model/weights.h"

namespace kv {

// A model's files: a Hugging Face folder (sim/model/safetensors_weights.h), or one file whose name ends in .gguf
// (sim/model/gguf_weights.h). What is wrong with them is a UserError that names the file.
class ModelFiles final : public Weights {
 public:
  explicit ModelFiles(const std::filesystem::path& path);

  const ModelConfig& config() const override { return weights_->config(); }
  std::filesystem::path folder() const override { return weights_->folder(); }
  Tensor load(const ExpectedTensor& tensor, Backend& backend) const override { return weights_->load(tensor, backend); }

 private:
  std::unique_ptr<const Weights> weights_;
};

inline ModelFiles load_model(const std::filesystem::path& path) { return ModelFiles(path); }

// Whether there is something to load: a folder, or a file of that ending.
bool is_model(const std::filesystem::path& path);

// The configuration alone.
ModelConfig load_model_config(const std::filesystem::path& path);

// The folder that holds what belongs to the model, such as its profiles: the path itself, or that of a GGUF file.
std::filesystem::path folder_of_model(const std::filesystem::path& path);

// SHA-256 of a GGUF file's bytes; of a folder, over names and bytes of config.json, the index if there is one, and the
// weight files. The path does not count.
std::string fingerprint(const std::filesystem::path& path);

}  // namespace kv
