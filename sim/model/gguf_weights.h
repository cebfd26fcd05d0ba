#pragma once

#include <filesystem>

#include "sim/io/gguf.h"
#include "sim/model/model_config.h"
#include "sim/model/weights.h"

namespace kv {

// A GGUF file, memory-mapped; every tensor is unpacked to f32 and turned into the backend's type when it is loaded.
// Each of these is a UserError naming the file and, where there is one, the tensor: what the file's reader and its
// configuration refuse, a tensor that is missing, of another shape or without a place in the model, and, when it is
// loaded, a value that is NaN or infinite.
class GgufWeights final : public Weights {
 public:
  explicit GgufWeights(const std::filesystem::path& path);

  const ModelConfig& config() const override { return config_; }
  std::filesystem::path folder() const override;
  Tensor load(const ExpectedTensor& tensor, Backend& backend) const override;

 private:
  void check_tensors() const;

  std::filesystem::path path_;
  GgufFile file_;
  ModelConfig config_;
};

}  // namespace kv
