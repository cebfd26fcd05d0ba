#include "kernels/linear.h"

#include "kernels/cuda/gemm.cuh"

namespace kv::cuda {

void linear(const LinearArgs& args) {
  const DType type = args.output.dtype;
  KV_CHECK(type == DType::kBF16 || (type == DType::kF32 && !args.bias && !args.addend));
  gemm({.input = args.input.as<bf16>(),
        .weight = args.weight.as<bf16>(),
        .bias = args.bias ? args.bias.as<bf16>() : nullptr,
        .addend = args.addend ? args.addend.as<bf16>() : nullptr,
        .output = args.output.data,
        .output_type = type,
        .rows = args.rows,
        .in = args.in,
        .out = args.out});
}

void linear_backward(const LinearBackwardArgs& args) {
  gemm({.input = args.output_gradient.as<bf16>(),
        .weight = args.weight.as<bf16>(),
        .weight_rows = WeightRows::kInputs,
        .addend = args.addend ? args.addend.as<bf16>() : nullptr,
        .output = args.input_gradient.as<bf16>(),
        .rows = args.rows,
        .in = args.out,
        .out = args.in});
}

}  // namespace kv::cuda
