#pragma once

#include "kernels/cuda/launch.cuh"

namespace kv::cuda {

// output[r, o] = Σ_i input[r, i] · weight[o, i] (+ bias[o]) (+ addend[r, o]), bf16 operands, f32 sums. Output, bias and
// addend are of `output_type`: bf16, or f32 (then without bias). cuBLASLt's tensor-core kernels need 16-byte rows;
// shapes without them, which only tests have, take a plain tiled kernel.
struct Gemm {
  const bf16* input = nullptr;   // [rows, in]
  const bf16* weight = nullptr;  // [out, in]
  const bf16* bias = nullptr;
  const void* addend = nullptr;
  void* output = nullptr;
  DType output_type = DType::bf16;
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
};
void gemm(const Gemm& args);

}  // namespace kv::cuda
