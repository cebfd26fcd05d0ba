#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/tensor.h"
#include "sim/cache/block.h"
#include "sim/learned/student_attention.h"
#include "sim/model/backward.h"
#include "sim/model/forward.h"

namespace kv {

// A frozen model whose attention learns: forward over whole sequences, and the gradient's way back through all layers.
// What is kept in between is each layer's input and its heads' outputs; going back, a layer's other activations are
// computed once more, so that they take the memory of one layer, which is the last one's when the way back begins.
class Student {
 public:
  explicit Student(const ForwardModel& model) : model_(model), buffers_(model.config) {}

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
  static size_t bytes(const Backend& backend, const ModelConfig& config, int64_t tokens);

 private:
  // [tokens, width] each, all in one piece of memory.
  struct Buffers {
    explicit Buffers(const ModelConfig& config);
    // Calls with each buffer and its width.
    template <class Visit>
    void for_each(const ModelConfig& config, const Visit& visit);

    std::vector<Ref> inputs;        // [layers] and, behind them, what the last layer puts out
    std::vector<Ref> head_outputs;  // [layers]
    Ref states;                     // of run()
    // Of the layer that is being computed.
    Ref normed, raw_q, raw_k, q, k, v, q_rotated, k_rotated, middle, normed_middle, gate, up, mixed;
    Ref query_gradient, key_gradient, value_gradient, pre_rope_key_gradient, input_gradient, head_output_gradient;
  };

  void reserve(const Block& block);
  ForwardBlock forward_block() const;
  LayerActivations activations(int layer);
  LayerActivations activations_in_place();
  ProjectionGradients zeroed_gradients(int layer);
  void backward_layer(int layer, Ref residual);

  const ForwardModel& model_;
  const Block* block_ = nullptr;
  StudentAttention* attention_ = nullptr;  // null: the last run was the teacher's, or has been gone back through
  Tensor memory_;
  Buffers buffers_;
};

}  // namespace kv
