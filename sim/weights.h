#pragma once

#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "sim/model_config.h"

namespace kv {

template <class T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kAlignment)); }
  void deallocate(T* pointer, std::size_t) { ::operator delete(pointer, kAlignment); }
  bool operator==(const CacheLineAllocator&) const = default;
};

template <class T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;  // data() at a multiple of 64 bytes

// Row-major [outputs, inputs], as Hugging Face stores them: y = W x + bias. What a model lacks is empty.
struct LayerWeights {
  AlignedVector<float> q;                       // [heads * head_dim, hidden]
  AlignedVector<float> k, v;                    // [kv_heads * head_dim, hidden]
  AlignedVector<float> o;                       // [hidden, heads * head_dim]
  AlignedVector<float> q_bias, k_bias, v_bias;  // [rows of q, k, v]
  AlignedVector<float> o_bias;                  // [hidden]
  AlignedVector<float> gate, up;                // [intermediate, hidden]
  AlignedVector<float> down;                    // [hidden, intermediate]
  AlignedVector<float> input_norm, post_norm;   // [hidden]
  AlignedVector<float> q_norm, k_norm;          // [head_dim]
};

struct ModelWeights {
  ModelConfig config;
  AlignedVector<float> embedding;   // [vocab, hidden]
  AlignedVector<float> final_norm;  // [hidden]
  AlignedVector<float> lm_head;     // [vocab, hidden]; empty when tied to the embedding
  std::vector<LayerWeights> layers;

  const AlignedVector<float>& output_embedding() const { return lm_head.empty() ? embedding : lm_head; }
};

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// The tensors that a Hugging Face checkpoint of this config holds.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// Reads config.json and model.safetensors, or else the shards of model.safetensors.index.json, into f32. Each of these
// is a UserError naming the file and, where there is one, the tensor: a missing, truncated or lying file, a tensor that
// is missing, of another shape or unknown to the config, a value that is NaN or infinite. A stored lm_head of a tied
// model and stored rotary frequencies are ignored, as transformers does.
ModelWeights load_model(const std::filesystem::path& folder);

// SHA-256 over names and bytes of config.json, the index if there is one, and the weight files; the folder's own name
// does not count.
std::string fingerprint(const std::filesystem::path& folder);

}  // namespace kv
