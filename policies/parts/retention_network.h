#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/retention_gate.h"
#include "kernels/tensor.h"
#include "sim/learned/learned_file.h"
#include "sim/learned/learner.h"
#include "sim/learned/named_parts.h"
#include "sim/model/projections.h"
#include "sim/model/source_info.h"
#include "sim/policy/layer_view.h"
#include "sim/policy/params.h"

namespace kv {

// What shapes 003's gates; files that say another thing are refused.
struct RetentionShape {
  // What layers and heads share. kLayer, the released code: a layer has its own hidden layers, and a row an output of a
  // KV head is the same in every layer. kShared, as the paper writes: one output for all heads of all layers, of which
  // each has a second layer of its own. kNone: a layer shares nothing with others; its heads have hidden layers
  // together.
  enum class Tying : uint8_t { kShared, kLayer, kNone };
  Tying tying = Tying::kLayer;
  int hidden = 64;
  bool has_any_hidden = false;  // as many as the weights have; `hidden` where a training begins
  bool has_second_layer = true;
  double output_bias = 10;  // at the beginning of a training; files know nothing of it

  static RetentionShape read(Params& params);
  std::map<std::string, std::string> settings() const;
  // Those that a file must have.
  std::map<std::string, std::string> expected_settings() const;
  void take_width(const LearnedFile& learned, std::string_view owner);
  // How many second layers a layer's heads have.
  int embeddings(const SourceInfo& info) const { return tying == Tying::kShared ? info.kv_heads : 1; }
};

// The gates of all layers (kernels/retention_gate.h): parameters as files have them, f32, and what the op wants of
// them.
class RetentionNetwork {
 public:
  explicit RetentionNetwork(const RetentionShape& shape) : shape_(shape) {}

  const RetentionShape& shape() const { return shape_; }
  std::vector<LearnedPart> parts(const SourceInfo& info) const;
  // In the backend's memory: weights of hidden layers as activations are, the rest as in files; a shared output once
  // for each KV head.
  size_t bytes(const SourceInfo& info, DType activations) const;
  // Weights of N(0, 0.02²), biases of hidden layers 0 and the output's as the shape says: β near 1, whoever reads.
  std::vector<float> initial(const SourceInfo& info, uint64_t seed) const;
  void use(Backend& backend, const SourceInfo& info, std::span<const float> parameters);
  // log β of the view's block: [tokens, kv_heads], valid until the next call.
  const float* log_retention(const LayerView& view);
  // What the op wants of a layer, but for where log β goes.
  RetentionGateArgs args(int layer, const Projections& projections, int64_t tokens) const;

 private:
  RetentionShape shape_;
  int kv_heads_ = 0, embeddings_ = 1;
  int64_t width_ = 0;
  Tensor input_weights_;   // [layers, hidden, width]
  Tensor input_bias_;      // [layers, hidden]
  Tensor hidden_weights_;  // [layers, embeddings, hidden, hidden]; with a second layer
  Tensor hidden_bias_;     // [layers, embeddings, hidden]
  Tensor output_weights_;  // [layers, kv_heads, hidden], or, where layers share it, [kv_heads, hidden]
  Tensor output_bias_;     // the same without hidden
  Tensor log_retention_;   // [tokens, kv_heads]
};

// What the parameters of all layers' gates did to a loss, as ops add it up.
class RetentionGradients {
 public:
  // All 0.
  RetentionGradients(Backend& backend, const SourceInfo& info, const RetentionNetwork& network);

  // Where the op adds those of a layer.
  void add_into(int layer, RetentionGateBackwardArgs& args);
  // As they are now.
  std::unique_ptr<Download> begin_download() const { return slopes_.begin_download(); }
  // Those on to the parameters as files have them, of which a shared one takes what all who share it give.
  void add_to(std::span<const float> slopes, std::span<double> gradient) const;

 private:
  enum Part : uint8_t {
    kInputWeights,
    kInputBiases,
    kHiddenWeights,
    kHiddenBiases,
    kOutputWeights,
    kOutputBiases,
    kParts,
  };
  bool is_own_output() const { return shape_.tying == RetentionShape::Tying::kNone; }  // each layer's

  RetentionShape shape_;
  NamedParts named_;
  int64_t kv_heads_, width_, second_;        // second_: units of all second layers of a layer, 0 without
  std::array<int64_t, kParts + 1> first_{};  // where each part's slopes begin, and behind them their end
  Tensor slopes_;                            // of all parts, each as the network's: one download
};

}  // namespace kv
