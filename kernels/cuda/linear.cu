#include "kernels/linear.h"

#include <algorithm>

#include "kernels/cuda/gemm.cuh"

namespace kv::cuda {

namespace {

Gemm gemm_of(const LinearArgs& args, const LinearProduct& product) {
  const DType type = product.output.dtype;
  KV_CHECK(type == DType::kBF16 || (type == DType::kF32 && !product.bias && !product.addend));
  return {.input = args.input.as<bf16>(),
          .weight = product.weight.as<bf16>(),
          .bias = product.bias ? product.bias.as<bf16>() : nullptr,
          .addend = product.addend ? product.addend.as<bf16>() : nullptr,
          .output = product.output.data,
          .output_type = type,
          .rows = args.rows,
          .in = args.in,
          .out = product.out};
}

// Whether a single row's products take the norm upon themselves, so that a step waits for one kernel less. Squares are
// summed in another order than rms_norm's.
bool norms_itself(std::span<const Gemm> products, const LinearNorm& norm) {
  return std::ranges::all_of(products, streams_weights) && norms_input(products[0].in) &&
         is_aligned(norm.weight.data, 16) && is_aligned(norm.output.data, 16);
}

}  // namespace

void linear(const LinearArgs& args) {
  Gemm products[LinearArgs::kMost];
  size_t count = 0;
  for (const LinearProduct& product : args.products) {
    if (product.out > 0) products[count++] = gemm_of(args, product);
  }
  const std::span all(products, count);
  if (!args.norm.weight) return gemm(all);
  const RmsNormArgs norm = norm_of(args);
  if (!all.empty() && norms_itself(all, args.norm)) {
    return gemv(all, {norm.weight.as<bf16>(), norm.output.as<bf16>(), norm.epsilon});
  }
  rms_norm(norm);
  for (Gemm& product : all) product.input = args.norm.output.as<bf16>();
  gemm(all);
}

void linear_backward(const LinearBackwardArgs& args) {
  gemm(Gemm{.input = args.output_gradient.as<bf16>(),
            .weight = args.weight.as<bf16>(),
            .weight_rows = WeightRows::kInputs,
            .addend = args.addend ? args.addend.as<bf16>() : nullptr,
            .output = args.input_gradient.as<bf16>(),
            .rows = args.rows,
            .in = args.out,
            .out = args.in});
}

}  // namespace kv::cuda
