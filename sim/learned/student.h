#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/tensor.h"
#include "sim/cache/block.h"
#include "sim/learned/student_attention.h"
#include "sim/model/backward.h"
#include "sim/model/forward.h"

namespace kv {

// A frozen model whose attention learns: forward over whole sequences, and the gradient's way back through all layers.
// What is kept in between is each layer's input and its heads' outputs, and all activations of the last layers, as many
// as have room in kMostKept bytes, but of one at least. Going back, those of the layers before are computed once more,
// one layer's at a time, where the first kept ones lay: the same numbers, so that memory decides about time alone.
class Student {
 public:
  static constexpr size_t kMostKept = size_t{2} << 30;

  // Where memory is lent, it lies there, from one student to the next: else each would have to allocate it anew.
  explicit Student(const ForwardModel& model, Tensor* lent = nullptr, size_t most_kept = kMostKept)
      : model_(model), most_kept_(most_kept), memory_(lent ? *lent : own_) {}

  // The states after the final norm, [tokens, hidden], until the next call. ids [tokens] on the backend. The block and
  // the attention must stay alive until backward() has returned.
  ConstRef run(const Block& block, const int32_t* ids, StudentAttention& attention);
  // The same with the model's own attention, from which there is no way back: writes states [tokens, hidden].
  void teach(const Block& block, const int32_t* ids, Ref states);
  // What run() ended with, before the final norm, had this gradient after it: each layer's attention gets its own
  // (StudentAttention::backward). The gradient [tokens, hidden] is written over; it is not where run() puts the states.
  // Once after each run().
  void backward(Ref normed_gradient);

  // What a run of so many tokens makes it allocate, all sequences together; attention's own aside.
  static size_t bytes(const Backend& backend, const ModelConfig& config, int64_t tokens, size_t most_kept = kMostKept);

 private:
  // What project_layer and absorb_layer compute of a layer, but for its input and output. [tokens, width] each.
  struct LayerBuffers {
    Ref normed, raw_q, raw_k, q, k, v, q_rotated, k_rotated, middle, normed_middle, gate, up, mixed;

    template <class Visit>
    void for_each(const ModelConfig& config, const Visit& visit);
  };
  // [tokens, width] each, all in one piece of memory.
  struct Buffers {
    Buffers(const Backend& backend, const ModelConfig& config, int64_t tokens, size_t most_kept);
    // Calls with each buffer and its width.
    template <class Visit>
    void for_each(const ModelConfig& config, const Visit& visit);

    std::vector<Ref> inputs;         // [layers] and, behind them, what the last layer puts out
    std::vector<Ref> head_outputs;   // [layers]
    std::vector<LayerBuffers> kept;  // of the last layers; [0] of those before, too
    Ref states;                      // of run()
    Ref query_gradient, key_gradient, value_gradient, pre_rope_key_gradient, input_gradient, head_output_gradient;
  };

  void reserve(const Block& block);
  ForwardBlock forward_block() const;
  // The first layer whose activations stay as run() leaves them.
  int first_kept() const { return model_.config.layers - static_cast<int>(buffers_->kept.size()); }
  LayerActivations activations(int layer);
  LayerActivations activations_in_place();
  ProjectionGradients zeroed_gradients(int layer);
  void backward_layer(int layer, Ref residual);

  const ForwardModel& model_;
  size_t most_kept_;
  const Block* block_ = nullptr;
  StudentAttention* attention_ = nullptr;  // null: the last run was the teacher's, or has been gone back through
  Tensor own_;
  Tensor& memory_;
  std::optional<Buffers> buffers_;
};

}  // namespace kv
