#include "sim/model/backward.h"

#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/silu_mul.h"

namespace kv {

namespace {

// input_gradient [rows, in] = output_gradient [rows, out] · weight [out, in] (+ addend)
struct ProductBack {
  ConstRef output_gradient;
  const Tensor& weight;
  int64_t in = 0;
  int64_t out = 0;
  ConstRef addend{};
};

void linear_back(const ForwardModel& model, int64_t rows, const ProductBack& product, Ref input_gradient) {
  model.backend.linear_backward({.output_gradient = product.output_gradient,
                                 .weight = product.weight.ref(),
                                 .addend = product.addend,
                                 .input_gradient = input_gradient,
                                 .rows = rows,
                                 .in = product.in,
                                 .out = product.out});
}

struct NormBack {
  ConstRef output_gradient;
  ConstRef input;
  const Tensor& weight;
  int64_t width = 0;
  ConstRef addend{};  // what passes by the norm
};

void norm_back(const ForwardModel& model, int64_t rows, const NormBack& norm, Ref input_gradient) {
  model.backend.rms_norm_backward({.output_gradient = norm.output_gradient,
                                   .input = norm.input,
                                   .weight = norm.weight.ref(),
                                   .addend = norm.addend,
                                   .input_gradient = input_gradient,
                                   .rows = rows,
                                   .width = norm.width,
                                   .epsilon = static_cast<float>(model.config.rms_norm_eps)});
}

}  // namespace

void backward_norm_head(const ForwardModel& model, ConstRef hidden, ConstRef normed_gradient, int64_t rows,
                        Ref residual) {
  norm_back(model, rows,
            {.output_gradient = normed_gradient,
             .input = hidden,
             .weight = model.weights.final_norm,
             .width = model.config.hidden_size},
            residual);
}

void backward_absorb(const ForwardModel& model, const ForwardBlock& block, int index, const LayerActivations& of,
                     Ref residual, Ref head_output_gradient) {
  const LayerTensors& layer = model.weights.layers[static_cast<size_t>(index)];
  const int64_t hidden = model.config.hidden_size, intermediate = model.config.intermediate_size;
  const int64_t rows = block.tokens;
  linear_back(model, rows, {residual, layer.down, intermediate, hidden}, of.mixed);
  model.backend.silu_mul_backward({.output_gradient = of.mixed,
                                   .gate = of.gate,
                                   .up = of.up,
                                   .gate_gradient = of.gate,
                                   .up_gradient = of.up,
                                   .count = rows * intermediate});
  linear_back(model, rows, {of.gate, layer.gate, hidden, intermediate}, of.normed_middle);
  linear_back(model, rows, {of.up, layer.up, hidden, intermediate, of.normed_middle}, of.normed_middle);
  norm_back(model, rows, {of.normed_middle, of.middle, layer.post_norm, hidden, residual}, residual);
  linear_back(model, rows, {residual, layer.o, model.config.q_size(), hidden}, head_output_gradient);
}

void backward_project(const ForwardModel& model, const ForwardBlock& block, int index, const LayerActivations& of,
                      const ProjectionGradients& gradients, Ref residual) {
  const LayerTensors& layer = model.weights.layers[static_cast<size_t>(index)];
  const ModelConfig& config = model.config;
  const int64_t hidden = config.hidden_size, rows = block.tokens;
  model.backend.rope_backward({.vectors = {{.output_gradient = gradients.queries,
                                            .norm = layer.q_norm.ref(),
                                            .input = of.raw_q,
                                            .input_gradient = gradients.queries,
                                            .heads = config.heads},
                                           {.output_gradient = gradients.keys,
                                            .addend = gradients.pre_rope_keys,
                                            .norm = layer.k_norm.ref(),
                                            .input = of.raw_k,
                                            .input_gradient = gradients.keys,
                                            .heads = config.kv_heads}},
                               .angles = angles_of(model, block),
                               .norm_epsilon = static_cast<float>(config.rms_norm_eps)});
  const Ref normed = of.normed;
  linear_back(model, rows, {gradients.queries, layer.q, hidden, config.q_size(), gradients.inputs}, normed);
  linear_back(model, rows, {gradients.keys, layer.k, hidden, config.kv_size(), normed}, normed);
  linear_back(model, rows, {gradients.values, layer.v, hidden, config.kv_size(), normed}, normed);
  norm_back(model, rows, {normed, of.input, layer.input_norm, hidden, residual}, residual);
}

}  // namespace kv
