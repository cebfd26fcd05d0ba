#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "kernels/write_gate.h"
#include "sim/learned/learner.h"
#include "sim/learned/named_parts.h"
#include "sim/model/projections.h"
#include "sim/model/source_info.h"
#include "sim/policy/layer_view.h"

namespace kv {

// WG-KV's gates of all layers (kernels/write_gate.h): parameters as files have them, f32, and what the op wants of
// them. A layer has the weights of both norms, [head_dim] each; a KV head W1 [hidden, 2 head_dim], b1, w2 [hidden] and
// b2.
class WriteGateNetwork {
 public:
  // hidden = floor(expand · head_dim), as in the code.
  explicit WriteGateNetwork(double expand) : expand_(expand) {}

  int hidden(const SourceInfo& info) const { return units(info.head_dim); }
  std::vector<LearnedPart> parts(const SourceInfo& info) const;
  // UserError where the op does not take heads of that dimension, or gates would have no hidden unit.
  void require_fit(int head_dim) const;
  // In the backend's memory: W1 as activations are, the rest as in files, without the norms, which W1 has taken up.
  size_t bytes(const SourceInfo& info, DType activations) const;
  // Norms of 1, all else uniform within ±1/√inputs of its layer, as the code's framework begins.
  std::vector<float> initial(const SourceInfo& info, uint64_t seed) const;
  // UserError as require_fit.
  void use(Backend& backend, const SourceInfo& info, std::span<const float> parameters);
  // Of the view's block and layers: [layers, tokens, kv_heads], valid until the next call.
  const float* gates(const LayerView& view);
  // What the op wants of so many layers from `layer` on, whose keys lie one behind the other, but for where the gates
  // go.
  WriteGateArgs args(int layer, const Projections& projections, int64_t tokens, int layers = 1) const;

 private:
  int units(int head_dim) const { return static_cast<int>(expand_ * head_dim); }

  double expand_;
  int kv_heads_ = 0, head_dim_ = 0;
  int hidden_ = 0;
  int64_t heads_ = 0;  // of all layers
  Tensor weights_;     // [layers, kv_heads, hidden, 2 head_dim], the norms' weights in them
  Tensor numbers_;     // b1 and w2 [layers, kv_heads, hidden], then b2 [layers, kv_heads]: one upload
  Tensor gates_;       // [layers asked about, tokens, kv_heads]
};

// What the parameters of all layers' gates did to a loss, as ops add it up.
class WriteGateGradients {
 public:
  // All 0.
  WriteGateGradients(Backend& backend, const SourceInfo& info, const WriteGateNetwork& network);

  // Where the op adds those of a layer.
  void add_into(int layer, WriteGateBackwardArgs& args);
  // As they are now.
  std::unique_ptr<Download> begin_download() const { return slopes_.begin_download(); }
  // Those on to the parameters as files have them, whose weights of norms and columns multiply, and added to
  // `gradient`.
  void add_to(std::span<const float> parameters, std::span<const float> slopes, std::span<double> gradient) const;

 private:
  struct Learned {
    std::span<const float> parameters;
    std::span<double> gradient;
  };
  // Adds what one of a layer's norms and its half of the columns of W1 get.
  void add_columns(int layer, int norm, std::span<const float> slopes, const Learned& to) const;

  int64_t heads() const { return int64_t{info_.layers} * info_.kv_heads; }  // of all layers
  int64_t inputs() const { return 2 * int64_t{info_.head_dim}; }
  // Where they begin among the slopes.
  int64_t first_bias() const { return heads() * hidden_ * inputs(); }
  int64_t first_output_weight() const { return first_bias() + heads() * hidden_; }
  int64_t first_output_bias() const { return first_output_weight() + heads() * hidden_; }

  SourceInfo info_;
  NamedParts named_;
  int64_t hidden_;
  Tensor slopes_;  // of W1, b1, w2 and b2, each of all heads: one download
};

}  // namespace kv
