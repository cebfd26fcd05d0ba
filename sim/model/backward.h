#pragma once

#include "kernels/element.h"
#include "sim/model/forward.h"

namespace kv {

// The way back through a frozen decoder, layer by layer: gradients of activations alone, no weight has one. Each
// function takes what the forward pass (sim/model/forward.h) has left in `activations`, of which those that a norm or a
// product lies between are apart. Gradients are in the backend's activation type, as what they are of.

// Gradients of what attention read, [tokens, heads, head_dim] but for `inputs`.
struct ProjectionGradients {
  Ref queries, keys, values;  // after the rotation
  Ref pre_rope_keys{};        // what else reads the keys before it; null: nothing does
  Ref inputs{};               // [tokens, hidden], of what else reads the layer's normed input; null: nothing does
};

// residual [rows, hidden]: from the gradient of the final norm's output, `normed`, to that of its input, `hidden`.
void backward_norm_head(const ForwardModel& model, ConstRef hidden, ConstRef normed_gradient, int64_t rows,
                        Ref residual);

// From the gradient of the layer's output in `residual` [tokens, hidden] to that of its middle, in place, and to that
// of its head outputs [tokens, q_heads, head_dim]. Writes over activations.gate, up, mixed and normed_middle, in which
// absorb_up_to_mixed has left what it needs.
void backward_absorb(const ForwardModel& model, const ForwardBlock& block, int layer,
                     const LayerActivations& activations, Ref residual, Ref head_output_gradient);

// From the gradient of the layer's middle in `residual` and those of its projections to that of its input, in place.
// Writes over the gradients and activations.normed.
void backward_project(const ForwardModel& model, const ForwardBlock& block, int layer,
                      const LayerActivations& activations, const ProjectionGradients& gradients, Ref residual);

}  // namespace kv
