#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "sim/io/safetensors.h"
#include "sim/model/model_config.h"
#include "sim/model/weights.h"

namespace kv {

// A Hugging Face folder: config.json and model.safetensors, or else the shards of model.safetensors.index.json,
// memory-mapped. Each of these is a UserError naming the file and, where there is one, the tensor: a missing, truncated
// or lying file, a tensor that is missing, of another shape or unknown to the config, and, when it is loaded, a value
// that is NaN or infinite. A stored lm_head of a tied model and stored rotary frequencies are ignored, as transformers
// does.
class SafetensorsWeights final : public Weights {
 public:
  explicit SafetensorsWeights(const std::filesystem::path& folder);

  const ModelConfig& config() const override { return config_; }
  std::filesystem::path folder() const override { return folder_; }
  Tensor load(const ExpectedTensor& tensor, Backend& backend) const override;

 private:
  void open_files();
  void open_shard(const std::string& name);
  void refuse_unexpected() const;
  void check(const ExpectedTensor& tensor) const;

  std::filesystem::path folder_;
  ModelConfig config_;
  std::string listing_;                           // the file that says which tensors there are
  std::map<std::string, std::string> places_;     // file name by tensor name
  std::map<std::string, SafetensorsFile> files_;  // by name
};

// SHA-256 over names and bytes of config.json, the index if there is one, and the weight files; the folder's own name
// does not count.
std::string folder_fingerprint(const std::filesystem::path& folder);

}  // namespace kv
