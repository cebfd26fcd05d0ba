#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_config.h"

namespace kv {

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;

  int64_t elements() const;
};

// The tensors that a Hugging Face checkpoint of this config holds.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);
int64_t parameters_of(const ModelConfig& config);

// Where a model's weights come from, tensor by tensor: what stands on the host at a time is a piece of one of them.
class Weights {
 public:
  virtual ~Weights() = default;
  virtual const ModelConfig& config() const = 0;
  virtual std::filesystem::path folder() const { return {}; }  // where they were read; empty: nowhere
  // One of expected_tensors(config()), in the backend's activation type.
  virtual Tensor load(const ExpectedTensor& tensor, Backend& backend) const = 0;
};

// A Hugging Face folder: config.json and model.safetensors, or else the shards of model.safetensors.index.json,
// memory-mapped. Each of these is a UserError naming the file and, where there is one, the tensor: a missing, truncated
// or lying file, a tensor that is missing, of another shape or unknown to the config, and, when it is loaded, a value
// that is NaN or infinite. A stored lm_head of a tied model and stored rotary frequencies are ignored, as transformers
// does.
class ModelFiles final : public Weights {
 public:
  explicit ModelFiles(const std::filesystem::path& folder);

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

inline ModelFiles load_model(const std::filesystem::path& folder) { return ModelFiles(folder); }

// Weights that nobody trained, for what depends on shapes only: time and memory. Matrices and biases are normal with
// sigma 0.02, the initializer_range of all these families (kernels/random_normal.h); norms are 1.
class RandomWeights final : public Weights {
 public:
  RandomWeights(ModelConfig config, uint64_t seed) : config_(std::move(config)), seed_(seed) {}

  const ModelConfig& config() const override { return config_; }
  Tensor load(const ExpectedTensor& tensor, Backend& backend) const override;

 private:
  ModelConfig config_;
  uint64_t seed_;
};

// Row-major [outputs, inputs], as Hugging Face stores them: y = W x + bias. What a model lacks is empty.
struct LayerTensors {
  Tensor q;                       // [heads * head_dim, hidden]
  Tensor k, v;                    // [kv_heads * head_dim, hidden]
  Tensor o;                       // [hidden, heads * head_dim]
  Tensor q_bias, k_bias, v_bias;  // [rows of q, k, v]
  Tensor o_bias;                  // [hidden]
  Tensor gate, up;                // [intermediate, hidden]
  Tensor down;                    // [hidden, intermediate]
  Tensor input_norm, post_norm;   // [hidden]
  Tensor q_norm, k_norm;          // [head_dim]
};

struct ModelTensors {
  Tensor embedding;   // [vocab, hidden]
  Tensor final_norm;  // [hidden]
  Tensor lm_head;     // [vocab, hidden]; empty when tied to the embedding
  std::vector<LayerTensors> layers;

  const Tensor& output_embedding() const { return lm_head ? lm_head : embedding; }
};

// All of them, on the backend. Throws MemoryError, before anything is allocated, where they do not fit.
ModelTensors load_tensors(const Weights& weights, Backend& backend);

// SHA-256 over names and bytes of config.json, the index if there is one, and the weight files; the folder's own name
// does not count.
std::string fingerprint(const std::filesystem::path& folder);

}  // namespace kv
