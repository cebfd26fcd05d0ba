#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/tensor.h"
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
  virtual std::filesystem::path folder() const { return {}; }  // that their files lie in; empty: there are none
  // One of expected_tensors(config()), in the backend's activation type.
  virtual Tensor load(const ExpectedTensor& tensor, Backend& backend) const = 0;
};

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

}  // namespace kv
