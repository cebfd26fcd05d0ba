#include "kernels/token_loss.h"

#include <algorithm>

#include "kernels/cuda/best.cuh"
#include "kernels/cuda/gemm.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 512;
// Logits held at a time: enough rows for the product to run at full rate, little beside a model.
constexpr int64_t kLogits = int64_t{64} << 20;

// One block a row. Two passes over the logits, the second out of the L2 cache.
__global__ void reduce_logits(TokenLossArgs args, const float* logits, int64_t first_row) {
  const int64_t row = first_row + blockIdx.x;
  const float* x = logits + blockIdx.x * args.vocab;
  const Best best = best_of_row<kThreads>(x, args.vocab);
  // With e = e^(x − max): log Σ e and Σ e (x − max) give both the loss and the entropy.
  double sum = 0, weighted = 0;
  for (int64_t v = threadIdx.x; v < args.vocab; v += kThreads) {
    const float below = x[v] - best.value;
    const float e = expf(below);
    sum += e;
    weighted += e > 0 ? double{e} * below : 0.0;
  }
  sum = block_reduce(sum, 0.0, Add());
  weighted = block_reduce(weighted, 0.0, Add());
  if (threadIdx.x != 0) return;
  const double log_sum = log(sum);
  const int32_t target = args.targets[row];
  args.nll[row] = target < 0 ? 0.0f : static_cast<float>(log_sum + best.value - x[target]);
  args.entropy[row] = static_cast<float>(log_sum - weighted / sum);
  args.argmax[row] = best.id;
}

}  // namespace

void token_loss(const TokenLossArgs& args) {
  const bf16* hidden = args.hidden.as<bf16>();
  const int64_t chunk = std::min(args.rows, std::max<int64_t>(16, kLogits / std::max<int64_t>(1, args.vocab)));
  const Scratch<float> held(args.logits ? 0 : chunk * args.vocab);
  for (int64_t first = 0; first < args.rows; first += chunk) {
    const int64_t rows = std::min(chunk, args.rows - first);
    float* logits = args.logits ? args.logits + first * args.vocab : held.data();
    gemm({.input = hidden + first * args.width,
          .weight = args.weight.as<bf16>(),
          .output = logits,
          .output_type = DType::kF32,
          .rows = rows,
          .in = args.width,
          .out = args.vocab});
    launch(reduce_logits, rows, kThreads, 0, args, logits, first);
  }
}

}  // namespace kv::cuda
