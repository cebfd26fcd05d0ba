#pragma once

#include <span>

#include "kernels/cuda/device.cuh"
#include "kernels/linear.h"

namespace kv::cuda {

// Whose numbers a row of a weight holds: an output's, [out, in], or an input's, [in, out], as a layer's weight lies for
// the way back.
enum class WeightRows : uint8_t { kOutputs, kInputs };

// output[r, o] = Σ_i input[r, i] · weight[o, i] (+ bias[o]) (+ addend[r, o]), bf16 operands, f32 sums. Output, bias and
// addend are of `output_type`: bf16, or f32 (then without bias). cuBLASLt's tensor-core kernels need 16-byte rows;
// a single row of a weight [out, in] takes a kernel of our own, which streams weights faster.
// Shapes without such rows, which only tests have, take a plain tiled kernel.
struct Gemm {
  const bf16* input = nullptr;   // [rows, in]
  const bf16* weight = nullptr;  // [out, in], or as weight_rows says
  WeightRows weight_rows = WeightRows::kOutputs;
  const bf16* bias = nullptr;
  const void* addend = nullptr;
  void* output = nullptr;
  DType output_type = DType::kBF16;
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
};
void gemm(const Gemm& args);
// Of one input.
void gemm(std::span<const Gemm> products);

constexpr size_t kMostProducts = LinearArgs::kMost;

// Whether gemv() takes it: a single row and weights [out, in], where input and weights are aligned to 16 bytes and `in`
// is a multiple of eight.
bool streams_weights(const Gemm& product);

// What an input goes through first (LinearNorm).
struct InputNorm {
  const bf16* weight = nullptr;  // none where null
  bf16* output = nullptr;
  float epsilon = 0;
};
// Whether gemv() can take the norm of so wide an input upon itself: input and weight lie in shared memory.
bool norms_input(int64_t in);
// Products of one input, at most so many, whose weights are read before the kernel waits (device.cuh). A norm's weight
// and output are aligned to 16 bytes, too; the output is written by one block while others read the input.
void gemv(std::span<const Gemm> products, const InputNorm& norm = {});

// What a product's kernel does with the sum of one output.
__device__ inline void finish(const Gemm& args, int64_t row, int64_t out, float sum) {
  const int64_t at = row * args.out + out;
  const bool wide = args.output_type == DType::kF32;
  if (args.bias) sum += to_f32(args.bias[out]);
  if (args.addend) {
    sum += wide ? static_cast<const float*>(args.addend)[at] : to_f32(static_cast<const bf16*>(args.addend)[at]);
  }
  if (wide) {
    static_cast<float*>(args.output)[at] = sum;
  } else {
    static_cast<bf16*>(args.output)[at] = to_bf16(sum);
  }
}

}  // namespace kv::cuda
