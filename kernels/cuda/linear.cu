#include "kernels/linear.h"

#include "kernels/cuda/gemm.cuh"

namespace kv::cuda {

void linear(const LinearArgs& args) {
  gemm({.input = args.input.as<bf16>(),
        .weight = args.weight.as<bf16>(),
        .bias = args.bias ? args.bias.as<bf16>() : nullptr,
        .addend = args.addend ? args.addend.as<bf16>() : nullptr,
        .output = args.output.as<bf16>(),
        .output_type = DType::bf16,
        .rows = args.rows,
        .in = args.in,
        .out = args.out});
}

}  // namespace kv::cuda
